-- converse: save entries of an agent's conversation, its metadata, and take messages out of its mailbox.
-- Guarantee: all or nothing, and only while task, attempt and owner hold (so a zombie saves nothing anywhere). Entries
--   are numbered without a hole by their writer: what was saved already is not saved again, a gap is refused.
-- KEYS: 1 tasks 2 conv 3 convm 4 mail 5 agents
-- ARGV: 1 task 2 attempt 3 owner 4 agent 5 number of the first entry 6 most bytes 7 number of entries, then kind and
--   body of each; then the number of metadata fields, then name and value of each; then the agent's number if it has
--   none yet ('' where it has); then mailbox entries to remove
-- Returns: {'ok', last number, messages waiting} | {'lost', why} | {'gap', last number} | {'full', bytes}
--#include common
local task, attempt, owner, agent = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local why = fence(KEYS[1], task, attempt, owner)
if why then return {'lost', why} end
local first, most, count = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local have = redis.call('HMGET', KEYS[3], 'seq', 'bytes', 'agent_id')
local seq, bytes = tonumber(have[1] or '0'), tonumber(have[2] or '0')
if first > seq + 1 then return {'gap', seq} end
local more = 0
for i = 1, count do
  if first + i - 1 > seq then more = more + #ARGV[7 + 2 * i] end
end
if more > 0 and bytes + more > most then return {'full', bytes} end

local now = string.format('%d', now_ms())
for i = 1, count do
  local n = first + i - 1
  if n > seq then
    redis.call('XADD', KEYS[2], string.format('%d-0', n), 'k', ARGV[6 + 2 * i], 's', task, 'a', attempt, 't', now, 'd', ARGV[7 + 2 * i])
    seq = n
  end
end
local at = 8 + 2 * count
local fields = tonumber(ARGV[at])
local set = {'seq', string.format('%d', seq), 'bytes', string.format('%d', bytes + more), 'updated_ms', now}
if not have[3] then
  local number = redis.call('HGET', KEYS[5], agent)
  if not number then
    number = ARGV[at + 2 * fields + 1]
    redis.call('HSET', KEYS[5], agent, number)
  end
  set[#set + 1], set[#set + 2], set[#set + 3], set[#set + 4] = 'agent_id', number, 'created_ms', now
end
for i = 1, 2 * fields do set[#set + 1] = ARGV[at + i] end
redis.call('HSET', KEYS[3], unpack(set))
for i = at + 2 * fields + 2, #ARGV do redis.call('XDEL', KEYS[4], ARGV[i]) end
return {'ok', seq, redis.call('XLEN', KEYS[4])}
