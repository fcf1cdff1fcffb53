-- Describes leases: consumer, its grace in µs, 1 if they expire one by one, resources. Returns for
-- each its resource, its owner if that lives, epoch, µs since it was acquired,
-- cursor, suspicion, number of parked messages, number of their lanes.
local consumer, grace, alone = arg(), argn(), arg() == '1'
local out = {}
for i = 4, #ARGV do
  local resource = ARGV[i]
  local l = call('HMGET', lease_key(consumer, resource), 'o', 'e', 'at', 'c', 'su', 'x')
  local of = consumer .. ':' .. resource
  local owner, expires = l[1] or '', tonumber(l[6] or 0) or 0
  if owner ~= '' and (not alive(owner) or alone and expires + grace <= now) then owner = '' end
  out[#out + 1] = {resource, owner, l[2] or '0', int(now - (tonumber(l[3]) or now)), l[4] or '', l[5] or '0',
    call('HLEN', T .. 'pk:' .. of), call('ZCARD', T .. 'due:' .. of)}
end
return out
