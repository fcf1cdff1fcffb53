-- Forgets sessions that ended longer ago than keep (µs), at most limit, and returns their ids.
local keep, limit = argn(), argn()
urgent()
reap(limit)
local left = limit
for _, consumer in ipairs(call('HKEYS', T .. 'rules')) do left = free_some(consumer, left) end
local gone = call('ZRANGEBYSCORE', T .. 'ended', '-inf', int(now - keep), 'LIMIT', 0, limit)
for _, session in ipairs(gone) do
  call('UNLINK', T .. 's:' .. session)
  call('ZREM', T .. 'ended', session)
end
return gone
