-- Forgets streams of which nothing is left: consumer, for how long in µs they must have been
-- without work, 1 to forget them or 0 to name them, streams. Returns their names.
local consumer, age, forget = arg(), argn(), arg() == '1'
local out = {}
for i = 4, #ARGV do
  local name = ARGV[i]
  local key = lease_key(consumer, name)
  local l = call('HMGET', key, 'o', 'since')
  local idle = (not l[1] or l[1] == '') and l[2] and now - tonumber(l[2]) > age
  local of = consumer .. ':' .. name
  if idle and call('SISMEMBER', T .. 'want:' .. consumer, name) == 0 and call('EXISTS', T .. 'pk:' .. of, T .. 'dx:' .. of) == 0 then
    if forget then
      call('DEL', key)
      call('SREM', T .. 'res:' .. consumer, name)
      call('ZREM', T .. 'free:' .. consumer, name)
    end
    out[#out + 1] = name
  end
end
return out
