-- When the server's clock was set back, what was to happen at some time would wait for that time to come
-- again: sessions that died would live on, and leases that were given back would stay untaken. Brings
-- such times to the latest that they can be: at most limit of each kind, and returns how many.
local limit = argn()
local slack = 60000000 -- clocks are also corrected by a little, and some leases are held back for a while
local n = 0
local function back(key, latest)
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. int(latest + slack), '+inf', 'LIMIT', 0, limit)) do
    call('ZADD', key, int(latest), member)
    n = n + 1
  end
end
for _, session in ipairs(call('ZRANGEBYSCORE', T .. 'sessions', '(' .. int(now + slack), '+inf', 'LIMIT', 0, limit)) do
  local ttl = tonumber(call('HGET', T .. 's:' .. session, 'ttl') or 0)
  if tonumber(call('ZSCORE', T .. 'sessions', session)) > now + ttl + slack then
    call('ZADD', T .. 'sessions', int(now + ttl), session)
    n = n + 1
  end
end
for _, consumer in ipairs(call('HKEYS', T .. 'rules')) do
  local grace, _, ttl = rules(consumer)
  back(T .. 'free:' .. consumer, now + grace + ttl)
  back(T .. 'freeing:' .. consumer, now + grace)
end
if n > 0 then news('o') end
return n
