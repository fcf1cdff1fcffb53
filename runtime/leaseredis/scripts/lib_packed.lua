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
