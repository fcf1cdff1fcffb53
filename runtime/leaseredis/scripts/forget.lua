-- Deletes a consumer under this tag, step by step: consumer, limit of a step (0: no key is
-- deleted). Returns 'members' or 'dead' when it is in use, else 1 while there is more to delete.
local consumer, limit = arg(), argn()
local members = call('SMEMBERS', T .. 'members:' .. consumer)
for _, session in ipairs(members) do
  if alive(session) then return 'members' end
end
if call('ZCARD', T .. 'dead:' .. consumer) > 0 then return 'dead' end
if limit == 0 then return 1 end -- it was only asked
call('HDEL', T .. 'patterns', consumer)
call('HDEL', T .. 'views', consumer) -- no entry is copied for it any more
local n = 0
for _, name in ipairs(call('ZRANGE', T .. 'dirty:' .. consumer, 0, limit - 1)) do
  call('UNLINK', T .. 'v:' .. consumer .. ':' .. name)
  call('ZREM', T .. 'dirty:' .. consumer, name)
  n = n + 1
end
while n < limit do
  local name = call('SRANDMEMBER', T .. 'res:' .. consumer)
  if not name then break end
  local p = parked_keys(consumer, name)
  n = n + 1 + drop_parked(p, limit - n)
  if call('EXISTS', p.all) == 0 then
    call('DEL', lease_key(consumer, name), T .. 'dx:' .. consumer .. ':' .. name)
    call('SREM', T .. 'res:' .. consumer, name)
  end
end
if n >= limit then return 1 end
for _, session in ipairs(call('ZRANGE', T .. 'freeing:' .. consumer, 0, -1)) do members[#members + 1] = session end
for _, session in ipairs(members) do
  call('UNLINK', T .. 'held:' .. consumer .. ':' .. session, T .. 'granted:' .. consumer .. ':' .. session)
end
for _, key in ipairs({'res:', 'want:', 'free:', 'freeing:', 'members:', 'pr:', 'dead:', 'dl:', 'once:', 'onceat:', 'dirty:', 'swept:', 'reads:'}) do
  call('UNLINK', T .. key .. consumer)
end
for _, key in ipairs({'rules', 'starts', 'paused'}) do call('HDEL', T .. key, consumer) end
call('HDEL', T .. 'consumers', consumer)
return 0
