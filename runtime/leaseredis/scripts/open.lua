-- Opens a session, or confirms that it is open. One that has ended stays so. The one that it
-- replaces has ended with it, and so has one that was never opened: a request for it may be on its way.
local session, ttl, host, pid, consumers, topics, replaced = arg(), argn(), arg(), arg(), arg(), arg(), arg() -- topics: JSON, patterns by consumer
if replaced ~= '' and call('HEXISTS', T .. 's:' .. replaced, 'ended') == 0 then
  urgent()
  end_session(replaced)
  call('HSET', T .. 's:' .. replaced, 'replaced', 1)
  for consumer in names_of(replaced) do free_later(consumer, replaced, now) end
  news('s')
end
local key = T .. 's:' .. session
if call('EXISTS', key) == 1 then return must_live(session) or 1 end
urgent()
call('HSET', key, 'ttl', int(ttl), 'opened', int(now), 'beat', int(now), 'host', host, 'pid', pid, 'consumers', consumers, 'topics', topics)
call('ZADD', T .. 'sessions', int(now + ttl), session)
local setbacks = call('HGET', KEYS[1], 'setbacks')
if setbacks then call('HSET', key, 'setbacks', setbacks) end
for consumer in consumers:gmatch('[^\n]+') do call('SADD', T .. 'members:' .. consumer, session) end
-- They count from here on, whether or not the consumer is registered again.
for consumer, patterns in pairs(cjson.decode(topics)) do
  local w = patterns_of(consumer)
  if w then want_topics(consumer, w, view_of(consumer), patterns) end
end
news('s')
return 1
