-- Pauses a consumer under this tag, or resumes it: consumer, 1 to pause. One that is paused keeps since when it is.
local consumer, pause = arg(), arg() == '1'
urgent()
if pause ~= (call('HEXISTS', T .. 'paused', consumer) == 1) then
  if pause then call('HSET', T .. 'paused', consumer, int(now)) else call('HDEL', T .. 'paused', consumer) end
  news('o')
end
return 1
