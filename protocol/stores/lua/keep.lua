-- keep: store an artifact's chunks by content, or make stored ones stay because a record is about to name them.
-- Guarantee: an artifact is whole or not there; nothing is stored past the space's limit; what no record names goes by
--   itself. With an owner given, naming happens only while task, attempt and owner hold.
-- KEYS: 1 art 2 arts 3 tasks
-- ARGV: 1 'put' or 'name' 2 sha256 3 size 4 most bytes of the space 5 ms to live until named 6 task 7 attempt 8 owner
--   ('' when it is nobody's attempt), then for put: the chunks
-- Returns: {'ok'} | {'full', bytes} | {'missing'} | {'lost', why}
--   arts: sha256 -> 'size' (named) or 'size:ms' (goes at ms); '=' -> bytes of all that is listed
--#include common
local sha, size, most, now = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), now_ms()
if ARGV[8] ~= '' then
  local why = fence(KEYS[3], ARGV[6], ARGV[7], ARGV[8])
  if why then return {'lost', why} end
end
local known = redis.call('HGET', KEYS[2], sha)
local there = redis.call('EXISTS', KEYS[1]) == 1

if ARGV[1] == 'name' then
  if not there then return {'missing'} end
  redis.call('PERSIST', KEYS[1])
  if not known then redis.call('HINCRBY', KEYS[2], '=', size) end
  redis.call('HSET', KEYS[2], sha, string.format('%d', size))
  return {'ok'}
end

local goes = string.format('%d:%d', size, now + tonumber(ARGV[5]))
if there and known then
  if string.find(known, ':', 1, true) then
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
    redis.call('HSET', KEYS[2], sha, goes)
  end
  return {'ok'}
end
local bytes = tonumber(redis.call('HGET', KEYS[2], '=') or '0')
if bytes + size > most then
  -- The sum still counts what has gone by itself: only here, near the limit, is the list gone through.
  local all, sum, gone = redis.call('HGETALL', KEYS[2]), 0, {}
  for i = 1, #all, 2 do
    local held, due = string.match(all[i + 1], '^(%d+):?(%d*)$')
    if all[i] ~= '=' then
      if due ~= '' and tonumber(due) <= now then gone[#gone + 1] = all[i] else sum = sum + tonumber(held) end
    end
  end
  for _, field in ipairs(gone) do redis.call('HDEL', KEYS[2], field) end
  redis.call('HSET', KEYS[2], '=', string.format('%d', sum))
  bytes = sum
  known = redis.call('HGET', KEYS[2], sha)
  if bytes + size > most then return {'full', bytes} end
end
redis.call('DEL', KEYS[1])
for i = 9, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('HSET', KEYS[2], sha, goes)
if not known then redis.call('HINCRBY', KEYS[2], '=', size) end
return {'ok'}
