-- Returns below which id no message will be added any more under this tag. Messages up to
-- reach were seen under other tags: ids here are raised above it, unless it is a day ahead.
local reach = argn()
local last = tonumber(call('HGET', KEYS[1], 'last')) or 0
if reach > last and reach >= now and reach < now + 86400000000 then
  last = reach
  call('HSET', KEYS[1], 'last', int(last))
end
return math.max(now, last + 1)
