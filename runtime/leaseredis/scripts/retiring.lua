-- Returns of each stream how often it was wanted and how far its owner has got, or nil when it
-- is not held.
local session, consumer = arg(), arg()
local dead = must_live(session)
if dead then return dead end
local out = {}
for i = argi + 1, #ARGV, 2 do
  local key = held(session, consumer, ARGV[i], ARGV[i + 1])
  local l = key and call('HMGET', key, 'g', 'c') or {}
  out[#out + 1] = key and {l[1] or '0', l[2] or ''} or {}
end
return out
