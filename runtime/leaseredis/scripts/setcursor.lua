-- Moves the cursor of a resource and fences its owner: consumer, resource, cursor, 1 to drop its
-- parked messages and dead letters, 1 if it is a stream, 1 if it is a stream with unread messages,
-- limit of a step, 1 to tell feeds. Returns 1 when it is done, 0 when there is more to drop, -1
-- when there is no such resource. Until it is done no process can take the lease, for half a minute at
-- most.
local consumer, resource, cursor, drop = arg(), arg(), arg(), arg() == '1'
local stream, unread, limit, tell = arg() == '1', arg() == '1', argn(), arg() == '1'
if call('SISMEMBER', T .. 'res:' .. consumer, resource) == 0 then return -1 end
local key = lease_key(consumer, resource)
local l = call('HMGET', key, 'o', 'e')
if l[1] and l[1] ~= '' then call('SREM', T .. 'held:' .. consumer .. ':' .. l[1], resource) end
call('HDEL', key, 'a', 'q', 'x', 'mk', 'me', 'mc')
call('HSET', key, 'o', '', 'e', int(math.max((tonumber(l[2]) or 0) + 1, now)), 'c', cursor, 'since', int(now))
local p, d = parked_keys(consumer, resource), dead_keys(consumer, resource)
local done = true
if drop then
  local left = limit - drop_parked(p, limit)
  if left > 0 then
    for _, id in ipairs(call('HRANDFIELD', d.messages, left)) do
      drop_dead(consumer, call('HGET', d.messages, id))
      call('HDEL', d.messages, id)
    end
  end
  done = call('EXISTS', p.due, d.messages) == 0
end
if stream and (unread or call('EXISTS', p.due) == 1) then call('SADD', T .. 'want:' .. consumer, resource) end
if not stream or call('SISMEMBER', T .. 'want:' .. consumer, resource) == 1 then
  call('ZADD', T .. 'free:' .. consumer, int(done and now or now + 30000000), resource)
end
if done and tell then news('o') end
return done and 1 or 0
