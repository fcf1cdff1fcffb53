-- Gives streams back. One whose owner saw no work stops being wanted, unless it was wanted again since it
-- looked, or has parked messages. After each epoch stands how often it was wanted when the
-- owner looked: empty when there was work, * when only the owner says what is work.
local session, consumer = arg(), arg()
local dead = must_live(session)
if dead then return dead end
urgent()
local freed = false
for i = argi + 1, #ARGV, 3 do
  local resource, epoch, wanted = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = held(session, consumer, resource, epoch)
  if key then
    local idle = wanted == '*' or
      wanted == (call('HGET', key, 'g') or '0') and not call('ZSCORE', T .. 'pr:' .. consumer, resource)
    vacate(key, consumer, resource, session, idle)
    freed = true
  end
end
if freed then news('o') end
return 1
