-- Trims the streams of a view. consumer, then in pairs: resource, least id to keep ('' = all)
-- Returns how many entries were dropped, and the least id of those that are left (0 = none).
local consumer = arg()
local dropped, least = 0, 0
for _ = 1, (#ARGV - 1) / 2 do
  local resource, keep = arg(), arg()
  local stream = T .. 'v:' .. consumer .. ':' .. resource
  local is = call('TYPE', stream).ok
  if is == 'stream' then
    if keep ~= '' then dropped = dropped + call('XTRIM', stream, 'MINID', '=', keep) end
    local first = call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    if first then
      local id = tonumber(first[1]:match('^%d+'))
      if least == 0 or id < least then least = id end
      is = nil
    end
  end
  if is == 'stream' or is == 'none' then
    -- All that it held was passed, so no feed has to report it.
    call('ZREM', T .. 'dirty:' .. consumer, resource)
    call('DEL', stream)
  end
end
return {dropped, least}
