-- bury
-- Ends a session whose connection the server does not have any more, unless it has noted another one since, on behalf of a session that
-- lives. Returns its id, host and process id when it did.
local judge, session, conn = arg(), arg(), arg()
local dead = must_live(judge)
if dead then return dead end
urgent()
local key = T .. 's:' .. session
if not alive(session) or call('HGET', key, 'conn') ~= conn then return {} end
local expires = tonumber(call('ZSCORE', T .. 'sessions', session))
end_session(session)
for consumer in names_of(session) do
  local grace = rules(consumer) -- with one, what the process may have believed is waited for
  free_later(consumer, session, grace > 0 and expires + grace or now)
end
news('s')
local s = call('HMGET', key, 'host', 'pid')
return {session, s[1] or '', s[2] or ''}
