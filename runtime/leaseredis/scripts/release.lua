-- Gives leases back. Those that are no longer held are passed over.
local session, consumer = arg(), arg()
local dead = must_live(session)
if dead then return dead end
urgent()
local freed = false
for i = argi + 1, #ARGV, 2 do
  local key = held(session, consumer, ARGV[i], ARGV[i + 1])
  if key then
    vacate(key, consumer, ARGV[i], session)
    freed = true
  end
end
if freed then news('o') end
return 1
