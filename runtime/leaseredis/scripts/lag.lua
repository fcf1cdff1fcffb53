-- Counts the entries of streams that follow an id. Arguments: stream, id, in pairs.
-- Returns now, then of each the count and when the first was added (µs; 0 = none).
local most, step = 10000, 500
local function count(stream, from, to)
  local n, first = 0, nil
  while n < most do
    local page = call('XRANGE', stream, from, to, 'COUNT', step)
    if page[1] and not first then first = page[1][1] end
    n = n + #page
    if #page < step then return n, first, true end
    from = '(' .. page[#page][1]
  end
  return n, first, false
end
local function us(id) return tonumber(id:match('^%d+')) end

local reply = {now}
for _ = 1, #ARGV / 2 do
  local stream, id = arg(), arg()
  local n, at = 0, 0
  if call('TYPE', stream).ok == 'stream' then
    local next = call('XRANGE', stream, '(' .. id, '+', 'COUNT', 1)[1]
    if next then
      at = us(next[1])
      local all = call('XLEN', stream)
      local passed, first, whole = count(stream, '-', id)
      if whole then
        n = all - passed
      else
        local left, _, rest = count(stream, '(' .. id, '+')
        n = left
        if not rest then
          local last = us(call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1])
          n = math.max(most, math.floor(all * (last - at) / math.max(last - us(first), 1)))
        end
      end
    end
  end
  reply[#reply + 1] = n
  reply[#reply + 1] = at
end
return reply
