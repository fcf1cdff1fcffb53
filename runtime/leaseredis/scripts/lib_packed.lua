-- A packed message is six texts, each behind its length, which is written seven bits a byte, and its payload.

local byte_of = string.byte

-- text_at returns where the text at a place begins and ends; the next is at the end + 1.
local function text_at(packed, at)
  local byte = byte_of(packed, at) or 0
  if byte < 128 then return at + 1, at + byte end
  local length, unit = byte - 128, 128
  repeat
    at = at + 1
    byte = byte_of(packed, at) or 0
    length, unit = length + byte % 128 * unit, unit * 128
  until byte < 128
  return at + 1, at + length
end

-- head_of is the length of a packed message without its payload.
local function head_of(packed)
  local last = 0
  for _ = 1, 6 do
    local _, to = text_at(packed, last + 1)
    last = to
  end
  return math.min(last, #packed)
end

-- kind_of is the kind of a packed message, its fourth text.
local function kind_of(packed)
  local from, last = 0, 0
  for _ = 1, 4 do from, last = text_at(packed, last + 1) end
  return packed:sub(from, last)
end
