-- Makes resources known to a consumer, and streams wanted. With sweep, streams with parked messages
-- are wanted too, those that are due first. Known streams stay as they are.
-- Returns how many changes of ownership there were.
local consumer, rule, start, sweep = arg(), arg(), arg(), arg() == '1'
local stream = rule:find(' stream', 1, true) ~= nil
if call('HGET', T .. 'rules', consumer) ~= rule then call('HSET', T .. 'rules', consumer, rule) end
local res, free = T .. 'res:' .. consumer, T .. 'free:' .. consumer
local changed = false
if #ARGV > argi then
  local known = call('SMISMEMBER', res, unpack(ARGV, argi + 1))
  for i, is in ipairs(known) do
    local name = ARGV[argi + i]
    if is == 0 then
      call('SADD', res, name)
      if start ~= '' then call('HSET', lease_key(consumer, name), 'c', start) end
      -- Those that no process has had come first, in the order of their names.
      if not stream then call('ZADD', free, 0, name) end
      changed = true
    end
    if stream and want(consumer, name) then changed = true end
  end
end
if sweep then
  for _, name in ipairs(call('ZRANGE', T .. 'pr:' .. consumer, 0, 999)) do
    if call('SISMEMBER', T .. 'want:' .. consumer, name) == 0 and want(consumer, name) then changed = true end
  end
end
if changed then news('o') end
return tonumber(call('HGET', KEYS[1], 'ownership')) or 0
