-- Gives up to limit leases of a session back and, when none is left, ends it. Returns 1 when it has
-- to be called again. The leases of a dead session are taken over as those of a crashed one.
local session, limit = arg(), argn()
if not alive(session) then
  -- One that never was is ended, too: a request to open it may be on its way.
  if call('EXISTS', T .. 's:' .. session) == 0 then end_session(session) end
  return 0
end
urgent()
for consumer in names_of(session) do
  for _, resource in ipairs(call('SPOP', T .. 'held:' .. consumer .. ':' .. session, int(limit))) do
    local key = lease_key(consumer, resource)
    if call('HGET', key, 'o') == session then vacate(key, consumer, resource, session) end
    limit = limit - 1
  end
  if limit <= 0 then
    news('o')
    return 1
  end
end
end_session(session)
news('s')
return 0
