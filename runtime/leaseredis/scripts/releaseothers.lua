-- Gives back up to limit leases of a session, none of those named, and returns how many.
local session, consumer, limit = arg(), arg(), argn()
local dead = must_live(session)
if dead then return dead end
urgent()
local known = {}
for i = argi + 1, #ARGV do known[ARGV[i]] = true end
local freed, held_set = 0, T .. 'held:' .. consumer .. ':' .. session
for _, resource in ipairs(call('SMEMBERS', held_set)) do
  if freed == limit then break end
  if not known[resource] then
    local key = lease_key(consumer, resource)
    if call('HGET', key, 'o') == session then
      vacate(key, consumer, resource, session)
    else
      call('SREM', held_set, resource)
    end
    freed = freed + 1
  end
end
if freed > 0 then news('o') end
return freed
