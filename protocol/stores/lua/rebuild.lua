-- rebuild: what was made anew beside the live projections takes their place.
-- Guarantee: in one step, and only if the log's last entry is the one up to which it was made; else nothing is changed.
-- KEYS: 1 log 2 tasks 3 ids 4 meta 5 outbox 6 due 7 held 8 names 9 beats
-- ARGV: 1 the log's last entry 2 how many fields of meta follow, then field, value ('' = remove), then the names of the
--   index streams that were made (`e:<event>` …), each once
-- Returns: 'MOVED' or 'OK'
if redis.replicate_commands then redis.replicate_commands() end
local base = string.sub(KEYS[1], 1, -5)
local found = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if (found and found[1] or '0-0') ~= ARGV[1] then return 'MOVED' end

local function swap(name)
  local live, made = base .. ':' .. name, base .. ':rb:' .. name
  if redis.call('EXISTS', made) == 1 then
    redis.call('RENAME', made, live)
    redis.call('PERSIST', live)
  else
    redis.call('DEL', live)
  end
end

local flat = redis.call('HGETALL', KEYS[8])
for i = 1, #flat, 2 do
  if flat[i + 1] == '*' then redis.call('DEL', base .. ':ix:' .. flat[i]) end
end
for _, name in ipairs({'tasks', 'ids', 'outbox', 'due', 'held', 'names'}) do swap(name) end
local at = 3 + 2 * tonumber(ARGV[2])
for i = 3, at - 1, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[4], ARGV[i]) else redis.call('HSET', KEYS[4], ARGV[i], ARGV[i + 1]) end
end
for i = at, #ARGV do swap('ix:' .. ARGV[i]) end
return 'OK'
