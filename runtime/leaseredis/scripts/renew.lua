-- Extends leases that expire by themselves (ttl and grace in µs) and returns those that it did not: it
-- revives none.
local session, consumer, ttl, grace = arg(), arg(), argn(), argn()
local lives = alive(session)
if lives then urgent() end
local lost = {}
for i = argi + 1, #ARGV, 2 do
  local resource = ARGV[i]
  local key = lives and held(session, consumer, resource, ARGV[i + 1])
  if key and tonumber(call('HGET', key, 'x') or 0) > now then
    call('HSET', key, 'x', int(now + ttl))
    call('ZADD', T .. 'free:' .. consumer, 'XX', int(now + ttl + grace), resource)
  else
    lost[#lost + 1] = resource
  end
end
return lost
