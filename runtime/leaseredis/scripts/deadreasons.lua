-- Counts dead letters by kind and reason, the newest first: consumer, limit in bytes that are loaded, numbers after which and up
-- to which to look, and limit. Returns the last number looked at ('' at the end), how many were, and for each kind and reason
-- these, how many, and the numbers of the oldest and the newest.
local consumer, room, after, through, limit = arg(), argn(), argn(), argn(), argn()
local numbers = dead_numbers(consumer, true, after, through, limit)
local out, of, looked, page = {}, {}, 0, 1
while looked < #numbers and room > 0 do
  local to = math.min(looked + page, #numbers)
  local loaded = 0
  for i, packed in ipairs(call('HMGET', T .. 'dl:' .. consumer, unpack(numbers, looked + 1, to))) do
    if packed then
      local _, _, _, reason, _, _, body = cmsgpack.unpack(packed)
      local kind, number = kind_of(body), numbers[looked + i]
      local kinds = of[kind]
      if not kinds then
        kinds = {}
        of[kind] = kinds
      end
      local group = kinds[reason]
      if group then
        group[3], group[4] = group[3] + 1, number
      else
        group = {kind, reason, 1, number, number}
        kinds[reason] = group
        out[#out + 1] = group
      end
      loaded = loaded + #packed
    end
  end
  -- How large they are is learnt from those that were read, so that no more are loaded than there is room for.
  room = room - loaded
  page = math.max(math.min(page * 4, 200, math.floor(room / (loaded / (to - looked) + 1))), 1)
  looked = to
end
return {looked == #numbers and looked < limit and '' or numbers[looked], looked, out}
