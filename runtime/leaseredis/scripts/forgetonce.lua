-- Forgets items that are older than they are kept: consumer, how long in µs, how many of the oldest
-- to pass over, how many to look at. Returns how many it looked at, how many it forgot, and those
-- that were begun and may still be executed: {item, session, resource, epoch}.
local consumer, keep, offset, limit = arg(), argn(), argn(), argn()
local k, begun, n = once_keys(consumer), {}, 0
local old = call('ZRANGEBYSCORE', k.at, '-inf', '(' .. int(now - keep), 'LIMIT', offset, limit)
for _, item in ipairs(old) do
  local state, s, r, e = item_of(k, item)
  if state == 'begun' and s ~= '' then
    begun[#begun + 1] = {item, s, r, e}
  else
    forget_item(k, item)
    n = n + 1
  end
end
return {#old, n, begun}
