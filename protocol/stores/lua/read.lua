-- read: records of one space after a cursor, filtered on the server.
-- Guarantee: the cost follows what is returned, not the log's length: one filter reads its index, several the shortest
--   one, at most 1,000 candidates a call. A cursor never skips and never repeats. Writes nothing.
-- KEYS: 1 log 2 meta 3 names (index streams share the tag)
-- ARGV: 1 start ('-', 'id' or '(id') 2 limit 3 who ('' or a name or 'prefix*') 4 event 5 session 6 least time ('' = any; exclusive)
-- Returns: {more 0|1, next, rewound 0|1, entries as XRANGE gives them}
local base = string.sub(KEYS[1], 1, -5)
local start, limit, who, event, session, least = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local CANDIDATES = 1000
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last_id = last and last[1] or '0-0'

local function parts(id)
  local ms, seq = string.match(id, '^%(?(%d+)%-?(%d*)$')
  return tonumber(ms), tonumber(seq ~= '' and seq or '0')
end
local function after(a, b)
  local am, as = parts(a)
  local bm, bs = parts(b)
  return am > bm or (am == bm and as > bs)
end

local rewound = 0
if string.sub(start, 1, 1) == '(' and after(start, last_id) then rewound = 1 end
local function done(more, next, entries) return {more, next, rewound, entries} end
local at_end = (last and rewound == 0) and last_id or (string.sub(start, 1, 1) == '(' and rewound == 0 and string.sub(start, 2) or last_id)

local prefix = string.sub(who, -1) == '*' and string.sub(who, 1, -2) or nil
local function matches(f)
  if #f ~= 14 or f[3] ~= 'who' then return false end -- no record: somebody wrote past the store
  if event ~= '' and f[8] ~= event then return false end
  if prefix then
    if string.sub(f[4], 1, #prefix) ~= prefix then return false end
  elseif who ~= '' and f[4] ~= who then return false end
  if least and not ((tonumber(f[6]) or 0) > least) then return false end
  if session == '' then return true end
  local ok, trace = pcall(cjson.decode, f[14])
  return ok and type(trace) == 'table' and trace.session_id == session
end

-- What may drive the read: index streams and ids that stand in `names`, with how many entries they have.
local NAMES = 5000
local main, multi = unpack(redis.call('HMGET', KEYS[3], '=main', '=multi'))
local function named(kind, value, into)
  local known = redis.call('HGET', KEYS[3], kind .. ':' .. value)
  if known == '*' then
    into.streams[#into.streams + 1] = base .. ':ix:' .. kind .. ':' .. value
  elseif known then
    for id in string.gmatch(known, '[^,]+') do into.ids[#into.ids + 1] = id end
  end
end
local function drivers()
  local found = {}
  local function add(source)
    source.n = #source.ids
    for _, key in ipairs(source.streams) do source.n = source.n + redis.call('XLEN', key) end
    if source.before then source.n = source.n + redis.call('XLEN', KEYS[1]) end
    found[#found + 1] = source
  end
  if event ~= '' then add({streams = {base .. ':ix:e:' .. event}, ids = {}}) end
  if session ~= '' then
    local source = {streams = {}, ids = {}}
    named('s', session, source)
    if session == main then source.before = multi end
    add(source)
  end
  if prefix and prefix ~= '' and redis.call('HLEN', KEYS[3]) <= NAMES then
    local source, start_of = {streams = {}, ids = {}}, 'w:' .. prefix
    for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
      if string.sub(field, 1, #start_of) == start_of then named('w', string.sub(field, 3), source) end
    end
    add(source)
  elseif who ~= '' and not prefix then
    local source = {streams = {}, ids = {}}
    named('w', who, source)
    add(source)
  end
  table.sort(found, function(a, b) return a.n < b.n end)
  return found[1]
end

-- A space's first session has no index before another one came: until then every record is its.
local indexed = redis.call('HGET', KEYS[2], 'indexed') == '1'
if indexed and session ~= '' and session == main and not multi then session = '' end
local filters = (event ~= '' and 1 or 0) + (session ~= '' and 1 or 0) + ((who ~= '' and who ~= '*') and 1 or 0) + (least and 1 or 0)
local driver = filters > 0 and indexed and drivers() or nil
local want = filters <= 1 and not least and math.min(CANDIDATES, limit + 1) or CANDIDATES

local candidates, exhausted = {}, true
if driver then
  for _, key in ipairs(driver.streams) do
    local got = redis.call('XRANGE', key, start, '+', 'COUNT', want)
    if #got == want then exhausted = false end
    for _, e in ipairs(got) do candidates[#candidates + 1] = e[1] end
  end
  if driver.before then
    local got = redis.call('XRANGE', KEYS[1], start, '(' .. driver.before, 'COUNT', want)
    if #got == want then exhausted = false end
    for _, e in ipairs(got) do candidates[#candidates + 1] = e[1] end
  end
  local exclusive, from = string.sub(start, 1, 1) == '(', string.gsub(start, '^%(', '')
  for _, id in ipairs(driver.ids) do
    if after(id, from) or (not exclusive and id == from) then candidates[#candidates + 1] = id end
  end
  if #candidates > 1 then
    table.sort(candidates, function(a, b) return after(b, a) end)
    for i = #candidates, want + 1, -1 do candidates[i] = nil; exhausted = false end
  end
else
  candidates = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', filters == 0 and limit + 1 or CANDIDATES)
  exhausted = #candidates < (filters == 0 and limit + 1 or CANDIDATES)
end

local entries, scanned = {}, nil
for _, c in ipairs(candidates) do
  local e = driver and redis.call('XRANGE', KEYS[1], c, c)[1] or (not driver and c) or nil
  if e and (filters == 0 or matches(e[2])) then
    if #entries == limit then return done(1, entries[limit][1], entries) end
    entries[#entries + 1] = e
  end
  scanned = driver and c or c[1]
end
if not exhausted then return done(1, scanned, entries) end
return done(0, at_end, entries)
