-- Counts the resources of consumers, those that are free, and what the live members own of them, and says for how long (µs)
-- each has been paused, or ''. It writes no key, so leases of expired sessions are counted where they are.
local out = {}
for i, consumer in ipairs(ARGV) do
  local grace, stream, row = rules(consumer)
  local resources = call('SCARD', T .. (stream and 'want:' or 'res:') .. consumer)
  local free = call('ZCOUNT', T .. 'free:' .. consumer, '-inf', int(now))
  local members = {}
  -- ended counts what a session held whose leases are free but where they were.
  local function ended(held, owned)
    free = free + owned
    if row == 0 then return end
    -- Leases that expire by themselves may be counted already. Very many are left to that.
    if owned > 500 then
      free = free - owned
      return
    end
    local both = call('ZINTER', 2, T .. 'free:' .. consumer, held, 'WEIGHTS', 1, 0, 'WITHSCORES')
    for k = 2, #both, 2 do
      if tonumber(both[k]) <= now then free = free - 1 end
    end
  end
  local ids = call('SMEMBERS', T .. 'members:' .. consumer)
  local expires = #ids > 0 and call('ZMSCORE', T .. 'sessions', unpack(ids)) or {}
  for j, id in ipairs(ids) do
    local at = tonumber(expires[j] or 0)
    local held = T .. 'held:' .. consumer .. ':' .. id
    local owned = call('SCARD', held)
    if at > now then
      members[#members + 1] = id
      members[#members + 1] = owned
    elseif owned > 0 and at + grace <= now then
      ended(held, owned)
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', T .. 'freeing:' .. consumer, '-inf', int(now))) do
    local held = T .. 'held:' .. consumer .. ':' .. id
    ended(held, call('SCARD', held))
  end
  local since = call('HGET', T .. 'paused', consumer)
  out[i] = {resources, since and 0 or free, members, since and int(math.max(now - since, 0)) or ''}
end
return out
