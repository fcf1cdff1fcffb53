-- Opens a session, or confirms that it is open. One that has ended stays so. The one that it
-- replaces has ended with it, and so has one that was never opened: a request for it may be on its way.
local session, ttl, host, pid, consumers, replaced = arg(), argn(), arg(), arg(), arg(), arg()
if replaced ~= '' and call('HEXISTS', T .. 's:' .. replaced, 'ended') == 0 then
  urgent()
  end_session(replaced)
  call('HSET', T .. 's:' .. replaced, 'replaced', 1)
  for consumer in names_of(replaced) do free_held(consumer, replaced, now) end
  news('o')
end
local key = T .. 's:' .. session
if call('EXISTS', key) == 1 then return must_live(session) or 1 end
urgent()
call('HSET', key, 'ttl', int(ttl), 'opened', int(now), 'beat', int(now), 'host', host, 'pid', pid, 'consumers', consumers)
call('ZADD', T .. 'sessions', int(now + ttl), session)
for consumer in consumers:gmatch('[^\n]+') do call('SADD', T .. 'members:' .. consumer, session) end
news('o')
return 1
