-- enqueue: references to assigned tasks into a role's stream.
-- Guarantee: safe to repeat: where `queued` names an entry that is still there, nothing happens. The group exists afterwards.
-- KEYS: 1 role stream 2 queued
-- ARGV: 1 most entries, then 3 a reference: space task attempt
-- Returns: one entry id a reference ('' where the backlog is full)
local out, noted, mine = {}, {}, {}
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM') end
local length = redis.call('XLEN', KEYS[1])
for at = 2, #ARGV, 3 do
  local field = ARGV[at] .. ':' .. ARGV[at + 1] .. ':' .. ARGV[at + 2]
  local entry = mine[field] or redis.call('HGET', KEYS[2], field)
  if not entry or #redis.call('XRANGE', KEYS[1], entry, entry) == 0 then
    if length >= tonumber(ARGV[1]) then
      entry = ''
    else
      entry = redis.call('XADD', KEYS[1], '*', 's', ARGV[at], 't', ARGV[at + 1], 'a', ARGV[at + 2])
      mine[field] = entry
      noted[#noted + 1] = field
      noted[#noted + 1] = entry
      length = length + 1
    end
  end
  out[#out + 1] = entry
end
for from = 1, #noted, 500 do redis.call('HSET', KEYS[2], unpack(noted, from, math.min(#noted, from + 499))) end
return out
