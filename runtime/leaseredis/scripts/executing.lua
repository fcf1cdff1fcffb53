-- Says whether leases have not ended: consumer, its grace in µs, 1 if they expire one by one,
-- number; for each session, resource and epoch. One whose owner is dead ends after the grace, when
-- others may take it. Returns 1 or 0 for each.
local consumer, grace, alone, n = arg(), argn(), arg() == '1', argn()
local out = {}
for i = 1, n do
  local session, resource, epoch = arg(), arg(), arg()
  local l = call('HMGET', lease_key(consumer, resource), 'o', 'e', 'x')
  local ends = 0
  if l[2] == epoch then
    local free = tonumber(call('ZSCORE', T .. 'free:' .. consumer, resource) or call('ZSCORE', T .. 'freeing:' .. consumer, l[1] or '') or 0)
    local expires = l[1] == session and tonumber(call('ZSCORE', T .. 'sessions', session) or 0) or 0
    ends = expires > 0 and expires + grace or free
    if alone and expires > 0 then ends = math.min(ends, tonumber(l[3] or 0) + grace) end
  end
  out[i] = ends > now and 1 or 0
end
return out
