-- Puts dead letters back as parked messages that are due now, behind what waits in their lanes:
-- consumer, 1 if its resources are streams, and number and lane of each. Returns how many there
-- were.
local consumer, streams, n = arg(), arg() == '1', 0
for i = 3, #ARGV, 2 do
  local resource, id, _, _, _, _, body = drop_dead(consumer, ARGV[i])
  if resource then
    local p = parked_keys(consumer, resource)
    if not parked(p, id) then
      set_aside(p, id, ARGV[i + 1], 0, now, 0, '', body)
      settle_lanes(p)
    end
    if streams then want(consumer, resource) end
    n = n + 1
  end
end
if n > 0 then news('p') end
return n
