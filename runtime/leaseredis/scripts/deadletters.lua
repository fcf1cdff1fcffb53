-- Lists dead letters, the oldest first: consumer, 1 to load payloads, number after which to begin,
-- limit, and numbers, which are looked up instead when there are any. Returns the last number
-- looked at, and for each letter its number, resource, message id, attempts, reason, when it first
-- failed and died in µs, the message, and the length of its payload.
local consumer, load, after, limit = arg(), arg() == '1', arg(), argn()

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
