-- Looks at leases: session, consumer, number; for each resource and epoch. Returns the seq of the last
-- progress of each, -1 when the session does not hold it with that epoch.
local session, consumer, n = arg(), arg(), argn()
local out = {}
for i = 1, n do
  local key = held(session, consumer, arg(), arg())
  out[i] = key and tonumber(call('HGET', key, 'q') or 0) or -1
end
return out
