-- Counts the entries of streams that follow an id. Arguments: stream, id, in pairs.
-- Returns now, then of each the count and when the first was added (µs; 0 = none).
-- It looks at so many entries of a stream, and in all, before it estimates: nobody else is served meanwhile.
local most, step, budget = 10000, 500, 30000
local function count(stream, from, to)
  local n = 0
  while n < most and budget > 0 do
    local page = call('XRANGE', stream, from, to, 'COUNT', step)
    n, budget = n + #page, budget - #page
    if #page < step then return n, true end
    from = '(' .. page[#page][1]
  end
  return n, false
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
      local passed, whole = count(stream, '-', id)
      if whole then
        n = all - passed
      else
        local left, rest = count(stream, '(' .. id, '+')
        n = left
        if not rest then
          local first = us(call('XRANGE', stream, '-', '+', 'COUNT', 1)[1][1])
          local last = us(call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1])
          n = math.max(left, 1, math.floor(all * (last - at) / math.max(last - first, 1)))
        end
      end
    end
  end
  reply[#reply + 1] = n
  reply[#reply + 1] = at
end
return reply
