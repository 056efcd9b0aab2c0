-- spend: a model call has ended: what it used takes the place of what was set aside for it.
-- Guarantee: counted once, however often it is sent; a call that never set anything aside counts nothing.
-- KEYS: 1 used (hash) 2 calls (zset)
-- ARGV: call role|model prompt completion micros unnamed   (unnamed 1: the endpoint named no usage, this is a guess;
--   role|model '' : the call came to nothing, what it may have used only counts in the budget)
-- Returns: 1 counted, 0 known already
local held = redis.call('HGET', KEYS[1], 'c:' .. ARGV[1])
if not held then return 0 end
local tokens, micros, rest = string.match(held, '^(%d+)|(%d+)|(.*)$')
local used_tokens = tonumber(ARGV[3]) + tonumber(ARGV[4])
local function add(field, by) redis.call('HINCRBY', KEYS[1], field, string.format('%d', by)) end
if string.find(rest, 'used', 1, true) then -- its lease had ended: it was counted whole
  add('=tokens', used_tokens - tonumber(tokens))
  add('=micros', tonumber(ARGV[5]) - tonumber(micros))
else
  add('=tokens', used_tokens)
  add('=micros', tonumber(ARGV[5]))
  add('=held_tokens', -tonumber(tokens))
  add('=held_micros', -tonumber(micros))
end
redis.call('HDEL', KEYS[1], 'c:' .. ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[2] ~= '' then
  local row = 'u:' .. ARGV[2] .. '|'
  add(row .. 'calls', 1)
  add(row .. 'prompt', tonumber(ARGV[3]))
  add(row .. 'completion', tonumber(ARGV[4]))
  add(row .. 'micros', tonumber(ARGV[5]))
  if ARGV[6] == '1' then add(row .. 'unnamed', 1) end
end
return 1
