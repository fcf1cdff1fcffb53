-- Makes parked messages of a resource due now: consumer, resource, limit in bytes that are loaded, ids. Returns how many were
-- looked at, and how many there were.
local consumer, resource, room = arg(), arg(), argn()
local p, looked, n = parked_keys(consumer, resource), 0, 0
for i = 4, #ARGV do
  if room <= 0 then break end
  looked = looked + 1
  local lane, attempt, due, failed, err, body, since = parked(p, ARGV[i])
  if lane then
    n, room = n + 1, room - #body
    if due > now then set_parked(p, ARGV[i], lane, attempt, now, failed, err, body, since) end
  end
end
settle_lanes(p)
if n > 0 then news('p') end
return {looked, n}
