-- ring
-- Notes the connection by which others see that a session lives, and returns the next twenty in the ring of those that have noted
-- one: session, connection and last heartbeat of each.
local session, conn = arg(), arg()
local dead = must_live(session)
if dead then return dead end
urgent()
local ring, key = T .. 'ring', T .. 's:' .. session
if call('HGET', key, 'conn') ~= conn then call('HSET', key, 'conn', conn) end
if call('ZADD', ring, 0, session) == 1 then call('PUBLISH', T .. 'news', 's') end -- who watches it is another one now
local out = {}
for _, from in ipairs({'(' .. session, '-'}) do
  for _, id in ipairs(call('ZRANGE', ring, from, '+', 'BYLEX', 'LIMIT', 0, 20)) do
    if #out == 60 or id == session then break end
    local its = alive(id) and call('HMGET', T .. 's:' .. id, 'conn', 'beat')
    if its and its[1] then
      out[#out + 1] = id
      out[#out + 1] = its[1]
      out[#out + 1] = its[2] or ''
    else
      call('ZREM', ring, id)
    end
  end
end
return out
