-- fire: the alarm of a delayed retry.
-- Guarantee: a compare-and-set on `retrying` with exactly that attempt. Before its time by the server's clock it changes
--   nothing and says how long remains; at its time it writes the task_assigned that the retry promised, once.
-- KEYS: 1 log 2 tasks 3 ids 4 meta 5 outbox 6 due 7 held 8 names 9 beats
-- ARGV: 1 task 2 attempt 3 who 4 detail ('' = that of the last assignment with `attempt` set anew) 5 digest
--   6 role 7 agent as the detail names them ('' = as before)
-- Returns: {'fired', role}, {'early', remaining ms}, {'no', state}; with detail '' {'detail', last assignment's detail}
--#include law
local keys = space_keys()
local log = open_log(keys)
if not log.kind then return {'no', 'unknown'} end
local task, attempt = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local s = unpack_state(redis.call('HGET', keys.tasks, task))
if not s or s.state ~= 'retrying' or s.attempt ~= attempt then return {'no', s and s.state or 'unknown'} end
if now < tonumber(s.due) then return {'early', tostring(tonumber(s.due) - now)} end
local last, found
for k = #s.order, 1, -1 do
  if string.sub(s.order[k], 1, 1) == 'A' then last = s.seen[s.order[k]][2]; break end
end
found = last and redis.call('XRANGE', keys.log, last, last)[1]
if not found then return {'no', 'never assigned'} end
if ARGV[4] == '' then return {'detail', found[2][12]} end
local trace = found[2][14]
local entry = write(keys, log, task, ARGV[3], string.format('%d', math.floor(now / 1000)), 'task_assigned',
                    'attempt ' .. ARGV[2] .. ' of ' .. task .. ' begins', ARGV[4], trace, session_of(trace))
apply(s, {id = task, who = ARGV[3], event = 'task_assigned', attempt = attempt, target = 'assigned', digest = ARGV[5], role = ARGV[6], agent = ARGV[7],
          waiting = '', worker = ''})
s.seen['A' .. ARGV[2]][2] = entry
settle(keys, task, s, 'retrying', now)
close_log(keys, log)
return {'fired', s.role}
