-- withdraw
-- Takes back the connection that a session has noted, unless it has noted another one since.
local session, conn = arg(), arg()
urgent()
if call('HGET', T .. 's:' .. session, 'conn') == conn then
  call('HDEL', T .. 's:' .. session, 'conn')
  call('ZREM', T .. 'ring', session)
end
return 1
