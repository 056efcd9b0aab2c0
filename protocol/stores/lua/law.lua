-- The law of a task's life, as protocol/tasks.py has it (judge, apply); the tables are generated from there.
--#include common
--#tables
local function record_mark(r) return (r.target == 'waiting' and 'Q' or CODE[r.event]) .. string.format('%d', r.attempt) end

-- 'new' | 'already', entry | 'refused', reason, message
local function judge(s, r)
  if not s then return 'new' end
  local seen = s.seen[record_mark(r)]
  if seen then
    if r.command or seen[1] == r.digest then return 'already', seen[2] end
    if r.attempt >= s.attempt then
      return 'refused', 'duplicate_id', 'a different ' .. r.event .. " of '" .. r.id .. "' attempt " .. r.attempt .. ' exists'
    end
  end
  if r.attempt < s.attempt then
    return 'refused', 'superseded_attempt',
      r.event .. ' of attempt ' .. r.attempt .. ": '" .. r.id .. "' is '" .. s.state .. "' at attempt " .. s.attempt
  end
  local allowed = (r.attempt == s.attempt) and SAME or HIGHER
  if not allowed[s.state][r.target] then
    return 'refused', 'illegal_transition', "'" .. r.id .. "' can't go from '" .. s.state .. "' to '" .. r.target .. "'"
  end
  local owned = "'" .. r.id .. "' attempt " .. s.attempt .. " is owned by '" .. s.owner .. "'"
  local fleet = is_start(s.owner)
  if r.attempt > s.attempt and fleet and r.target ~= 'assigned' and r.target ~= 'retrying' then
    return 'refused', 'not_the_owner', owned
  end
  if (s.state == 'processing' or s.state == 'failed') and s.owner ~= ''
     and (r.target == 'completed' or r.target == 'failed' or r.target == 'waiting'
          or (not r.command and (r.target == 'retrying' or r.target == 'blocked'))) then
    local mine
    if fleet then mine = (r.owner == s.owner) else mine = ('~' .. r.who == s.owner) end
    if not mine then return 'refused', 'not_the_owner', owned end
  end
  return 'new'
end

-- Changes s (or a new state) in place; the entry is filled in when it is known.
local function apply(s, r)
  if not s then
    s = {state = '', attempt = r.attempt, owner = '', role = '', agent = '', tries = 0, due = '0', waiting = '', seen = {}, order = {}}
  end
  local mark = record_mark(r)
  if not s.seen[mark] then s.order[#s.order + 1] = mark end
  s.seen[mark] = {r.digest, ''}
  if r.target == 'failed' or (r.target == 'lost' and s.state == 'processing') then s.tries = s.tries + 1 end
  if r.target == 'processing' then
    s.owner = is_start(r.worker) and r.worker or ('~' .. r.who)
  elseif r.target ~= 'failed' then
    s.owner = ''
  end
  s.state = r.target
  s.attempt = math.max(s.attempt, r.attempt)
  if r.role ~= '' then s.role = r.role end
  if r.agent ~= '' then s.agent = r.agent end
  s.due = '0'
  s.waiting = (r.target == 'waiting') and r.waiting or ''
  return s
end

-- 'new' | 'refused', reason, message
local function judge_decision(s, action, task, question)
  local now = s and s.state or 'unknown'
  if action == 'answer' and question ~= '' then
    if not s or s.state ~= 'waiting' or s.waiting ~= question then
      return 'refused', 'illegal_transition', "question '" .. question .. "' is not open: '" .. task .. "' is '" .. now .. "'"
    end
    return 'new'
  end
  local from = DECISION_FROM[action]
  if from and not (s and from[s.state]) then
    return 'refused', 'illegal_transition',
      "'" .. action .. "': '" .. task .. "' can't go from '" .. now .. "' to '" .. DECISION_TO[action] .. "'"
  end
  return 'new'
end

local function apply_decision(s, action, role)
  local target = DECISION_TO[action]
  if not target then return end
  s.state, s.owner, s.due, s.waiting = target, '', '0', ''
  if target == 'pending' then s.tries = 0 end
  if role ~= '' then s.role = role end
end

-- An alarm repeats the last assignment: what an outside agent reports of a task that nobody assigned has none.
local function was_assigned(s)
  for _, key in ipairs(s.order) do
    if string.sub(key, 1, 1) == 'A' then return true end
  end
  return false
end

-- The projections that follow from a task's final state; `before` is its state when the script began.
local function settle(keys, task, s, before, now)
  later('HSET', keys.tasks, task, pack_state(s))
  local held = s.state == 'processing' and is_start(s.owner) and s.owner or (s.state == 'lost' and '!lost') or nil
  if held then later('HSET', keys.held, task, held)
  elseif before == 'processing' or before == 'lost' then later('HDEL', keys.held, task) end
  if s.state == 'retrying' and was_assigned(s) then later('ZADD', keys.due, s.due, task)
  elseif before == 'retrying' then later('ZREM', keys.due, task) end
  if s.state == 'assigned' then later('ZADD', keys.outbox, now, task)
  elseif before == 'assigned' then later('ZREM', keys.outbox, task) end
end

local INDEX_FROM = 256 -- records; a shorter log is scanned
local INLINE = 32 -- entries of one who or session that stand in `names`; from then on they have a stream

-- One entry into the index of a who ('w') or session ('s'): most have a few records, and a stream costs some 4 KB.
local named, renamed = {}, {}
local function name_of(keys, field)
  if named[field] == nil then named[field] = redis.call('HGET', keys.names, field) end
  return named[field]
end
local function rename(field, value)
  named[field] = value
  renamed[field] = true
end
local function index_name(keys, kind, value, entry)
  local field, stream = kind .. ':' .. value, keys.base .. ':ix:' .. kind .. ':' .. value
  local known = name_of(keys, field)
  if known == '*' then
    redis.call('XADD', stream, entry, '', '')
    return
  end
  local list = known and (known .. ',' .. entry) or entry
  local ids = split(list, ',')
  if #ids >= INLINE then
    for _, id in ipairs(ids) do redis.call('XADD', stream, id, '', '') end
    list = '*'
  end
  rename(field, list)
end

-- What was gathered over the script: made once, at its end.
local function flush(keys)
  for field in pairs(renamed) do later('HSET', keys.names, field, named[field]) end
  renamed = {}
  flush_gathered()
end

local function index(keys, entry, event, who, session)
  redis.call('XADD', keys.base .. ':ix:e:' .. event, entry, '', '')
  index_name(keys, 'w', who, entry)
  -- Most spaces have one session: it needs no index until another one comes (`=multi`: the entry from which on all have).
  local main = name_of(keys, '=main')
  if not main then main = session; rename('=main', session) end
  if session ~= main or name_of(keys, '=multi') then
    if not name_of(keys, '=multi') then rename('=multi', entry) end
    index_name(keys, 's', session, entry)
  end
end

-- A trace is JSON that our own side wrote; a quote inside another of its texts would stand behind a backslash.
local function session_of(trace)
  return string.match(trace, '"session_id":"([^"]+)"') or cjson.decode(trace).session_id
end

-- What is indexed of an entry: event, who, session; nil where it is no record (somebody wrote past the store).
local function indexed_parts(flat)
  local f = {}
  for i = 1, #flat, 2 do f[flat[i]] = flat[i + 1] end
  local ok, session = pcall(session_of, f.trace or '')
  if f.event and f.who and ok and type(session) == 'string' then return f.event, f.who, session end
end

-- Writes one entry to the log and what follows from it; `log` carries counters over a script's calls.
local function write(keys, log, id, who, time, event, what, detail, trace, session)
  local entry = redis.call('XADD', keys.log, '*', 'id', id, 'who', who, 'time', time, 'event', event, 'what', what,
                           'detail', detail, 'trace', trace)
  log.n = log.n + 1
  log.added = log.added + 1
  log.bytes = log.bytes + #id + #who + #what + #detail + #trace + 60
  if (string.sub(event, 1, 5) == 'task_' and event ~= 'task_merged') or event == 'decision' then log.matter = entry end
  if log.indexed then
    index(keys, entry, event, who, session)
  elseif log.n >= INDEX_FROM then
    for _, old in ipairs(redis.call('XRANGE', keys.log, '-', '+')) do
      local old_event, old_who, old_session = indexed_parts(old[2])
      if old_event then index(keys, old[1], old_event, old_who, old_session) end
    end
    log.indexed = true
    redis.call('HSET', keys.meta, 'indexed', '1')
  end
  return entry
end

local function open_log(keys)
  local m = redis.call('HMGET', keys.meta, 'kind', 'n', 'bytes', 'indexed', 'matter', 'lease_term', 'lease_holder')
  return {kind = m[1], n = tonumber(m[2] or '0'), bytes = 0, total = tonumber(m[3] or '0'), added = 0, indexed = m[4] == '1',
          matter = m[5] or '0-0', before = m[5] or '0-0', term = m[6] or '0', holder = m[7] or ''}
end

local function close_log(keys, log)
  flush(keys)
  if log.added == 0 then return end
  local counts = {'n', string.format('%d', log.n), 'bytes', string.format('%d', log.total + log.bytes)}
  if log.matter ~= log.before then counts[5], counts[6] = 'matter', log.matter end
  redis.call('HSET', keys.meta, unpack(counts))
end

local function space_keys()
  local base = string.sub(KEYS[1], 1, -5)
  return {base = base, log = KEYS[1], tasks = KEYS[2], ids = KEYS[3], meta = KEYS[4], outbox = KEYS[5], due = KEYS[6],
          held = KEYS[7], names = KEYS[8], beats = KEYS[9]}
end

local function ms_of(entry) return tonumber(string.match(entry, '^(%d+)')) end
-- Is entry a later than b? Where b is no entry (somebody wrote it by hand): yes.
local function entry_after(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  if not bm then return true end
  am, as, bm, bs = tonumber(am), tonumber(as), tonumber(bm), tonumber(bs)
  return am > bm or (am == bm and as > bs)
end
