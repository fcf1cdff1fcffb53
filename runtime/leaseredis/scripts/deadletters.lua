-- Lists dead letters, the oldest first: consumer, 1 to load payloads, limit in bytes that are loaded, 1 to begin with the
-- newest, numbers after which and up to which to look, ages in µs that they have at least and at most (0: any), limit, and
-- numbers, which are looked up instead when there are any. Returns the last number looked at ('' at the end), how many were, and
-- for each letter its number, resource, message id, attempts, reason, when it first failed in µs, the message, and the length of
-- its payload.
local consumer, load, room, back = arg(), arg() == '1', argn(), arg() == '1'
local after, through, min_age, max_age, limit = argn(), argn(), argn(), argn(), argn()
if min_age > 0 then through = math.min(through, now - min_age) end
if max_age > 0 then after = math.max(after, now - max_age - 1) end

local numbers, asked = {}, #ARGV > 9
for i = 10, #ARGV do numbers[#numbers + 1] = ARGV[i] end
if not asked then numbers = dead_numbers(consumer, back, after, through, limit) end
local out, looked = {}, 0
for _, number in ipairs(numbers) do
  if room <= 0 then break end
  looked = looked + 1
  if not asked or tonumber(number) > after and tonumber(number) <= through then
    local resource, id, attempts, reason, failed, _, body = dead_letter(consumer, number)
    if resource then
      local head = head_of(body)
      room = room - #body - #reason
      out[#out + 1] = {number, resource, id, attempts, reason, failed, load and body or body:sub(1, head), #body - head}
    end
  end
end
return {looked == #numbers and (asked or looked < limit) and '' or numbers[looked], looked, out}
