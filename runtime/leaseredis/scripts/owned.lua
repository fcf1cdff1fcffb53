-- Lists leases of a session from a place in their set on, about so many. Returns the next place,
-- 0 at the end, and resource and epoch of each. It may name one twice.
local session, consumer, at, n = arg(), arg(), arg(), argn()
local held_set = T .. 'held:' .. consumer .. ':' .. session
local found = call('SSCAN', held_set, at, 'COUNT', int(n))
local out = {found[1]}
for _, resource in ipairs(found[2]) do
  local l = call('HMGET', lease_key(consumer, resource), 'o', 'e')
  if l[1] == session then
    out[#out + 1] = resource
    out[#out + 1] = l[2]
  end
end
return out
