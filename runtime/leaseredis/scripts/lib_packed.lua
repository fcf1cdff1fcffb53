-- A packed message is six texts, each behind its length, which is written seven bits a byte, and its payload.

-- text_at returns where the text at a place begins and ends; the next is at the end + 1.
local function text_at(packed, at)
  local length, unit = 0, 1
  repeat
    local byte = packed:byte(at) or 0
    length, unit, at = length + byte % 128 * unit, unit * 128, at + 1
  until byte < 128
  return at, at + length - 1
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
