-- close: the last words of an attempt whose task was cancelled, into its agent's conversation.
-- Guarantee: all or nothing, and only while the task is cancelled in this very attempt; only if nothing was saved since
--   the writer counted. Whoever else may write is refused by `converse` then, so this is said once.
-- KEYS: 1 tasks 2 conv 3 convm
-- ARGV: 1 task 2 attempt 3 number of the first entry 4 number of entries, then kind and body of each; then name and
--   value of each metadata field
-- Returns: {'ok', last number} | {'lost', why} | {'moved', last number}
--#include common
local task, attempt, first, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local s = unpack_state(redis.call('HGET', KEYS[1], task))
if not s then return {'lost', 'unknown_task'} end
if s.attempt ~= tonumber(attempt) then return {'lost', 'superseded_attempt'} end
if s.state ~= 'cancelled' then return {'lost', s.state} end
local have = redis.call('HMGET', KEYS[3], 'seq', 'bytes')
local seq, bytes = tonumber(have[1] or '0'), tonumber(have[2] or '0')
if first ~= seq + 1 then return {'moved', seq} end
local now = string.format('%d', now_ms())
for i = 1, count do
  local body = ARGV[4 + 2 * i]
  seq, bytes = seq + 1, bytes + #body
  redis.call('XADD', KEYS[2], string.format('%d-0', seq), 'k', ARGV[3 + 2 * i], 's', task, 'a', attempt, 't', now, 'd', body)
end
local set = {'seq', string.format('%d', seq), 'bytes', string.format('%d', bytes), 'updated_ms', now}
for i = 5 + 2 * count, #ARGV do set[#set + 1] = ARGV[i] end
redis.call('HSET', KEYS[3], unpack(set))
return {'ok', seq}
