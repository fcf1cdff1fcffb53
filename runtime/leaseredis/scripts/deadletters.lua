-- Lists dead letters, the oldest first: consumer, 1 to load payloads, number after which to begin,
-- limit, and numbers, which are looked up instead when there are any. Returns the last number
-- looked at, and for each letter its number, resource, message id, attempts, reason, when it first
-- failed and died in µs, the message, and the length of its payload.
local consumer, load, after, limit = arg(), arg() == '1', arg(), argn()

-- head_of is the length of a packed message without its payload: six texts, each behind its length,
-- which is written seven bits a byte.
local function head_of(packed)
  local at = 1
  for _ = 1, 6 do
    local length, unit = 0, 1
    repeat
      local byte = packed:byte(at) or 0
      length, unit, at = length + byte % 128 * unit, unit * 128, at + 1
    until byte < 128
    at = at + length
  end
  return math.min(at - 1, #packed)
end

local numbers = {}
for i = 5, #ARGV do numbers[#numbers + 1] = ARGV[i] end
if #numbers == 0 then numbers = call('ZRANGEBYSCORE', T .. 'dead:' .. consumer, '(' .. after, '+inf', 'LIMIT', 0, limit) end
local out = {}
for _, number in ipairs(numbers) do
  local resource, id, attempts, reason, failed, died, body = dead_letter(consumer, number)
  if resource then
    local head = head_of(body)
    out[#out + 1] = {number, resource, id, attempts, reason, failed, died, load and body or body:sub(1, head), #body - head}
  end
end
return {numbers[#numbers] or '', out}
