-- Opens a session, or confirms that it is open. One that has ended stays so.
local session, ttl, host, pid, consumers = arg(), argn(), arg(), arg(), arg()
local key = T .. 's:' .. session
if call('EXISTS', key) == 1 then return must_live(session) or 1 end
urgent()
call('HSET', key, 'ttl', int(ttl), 'opened', int(now), 'beat', int(now), 'host', host, 'pid', pid, 'consumers', consumers)
call('ZADD', T .. 'sessions', int(now + ttl), session)
local setbacks = call('HGET', KEYS[1], 'setbacks')
if setbacks then call('HSET', key, 'setbacks', setbacks) end
for consumer in consumers:gmatch('[^\n]+') do call('SADD', T .. 'members:' .. consumer, session) end
news('o')
return 1
