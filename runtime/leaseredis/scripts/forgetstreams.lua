-- Forgets streams without messages: consumer, for how long in µs they must have been
-- without work, 1 to forget them or 0 to name them, streams. Returns their names.
local consumer, age, forget = arg(), argn(), arg() == '1'
local out = {}
local wanted = #ARGV > 3 and call('SMISMEMBER', T .. 'want:' .. consumer, unpack(ARGV, 4)) or {}
for i = 4, #ARGV do
  local name, idle = ARGV[i], wanted[i - 3] == 0 -- most are wanted while they are held, and cost no more
  local key = lease_key(consumer, name)
  if idle then
    local l = call('HMGET', key, 'o', 'since')
    idle = (not l[1] or l[1] == '') and l[2] and now - tonumber(l[2]) > age
  end
  local of = consumer .. ':' .. name
  if idle and call('EXISTS', T .. 'pk:' .. of, T .. 'dx:' .. of) == 0 then
    if forget then
      call('DEL', key)
      call('SREM', T .. 'res:' .. consumer, name)
      call('ZREM', T .. 'free:' .. consumer, name)
    end
    out[#out + 1] = name
  end
end
return out
