-- Decides all charges of one request on the server that holds their counters.
--
-- This is `algorithm::decide` once more, and the two agree to the last microsecond (tests/algorithms.rs). Read the Rust
-- for the reasons; here stands only what Lua makes different:
--
-- * Numbers are doubles. All values stay integers below 2^53, and products go through muldiv, whose proof is in
--   src/algorithm/arith.rs. The operator % is not used, since it is inexact for large numbers; math.fmod is exact.
-- * A script that fails has written what it wrote. So it reads all keys, then decides, then writes: whatever can fail
--   for reasons of the data fails before the first write.
-- * Closures and tables cost more than arithmetic, and each call builds them anew. So there is one function for an
--   algorithm, and one table for a key.
--
-- What KEYS, ARGV and the reply mean is written in src/store/script.rs.
-- Works on Redis 6.2 and later. Without a shebang, so that a call may touch keys of several slots of its node.

local EXACT = 9007199254740992 -- 2^53
local WAIT_MAX = 4503599627370496 -- 2^52
local COUNT_MAX = 562949953421311 -- 2^49 - 1
local NEVER = -1

local floor, fmod, ceil = math.floor, math.fmod, math.ceil
local byte, match, format = string.byte, string.match, string.format

-- TAKE, DRAIN, COUNT, LOOK, GIVE are the letters T D C L G; ENFORCE, QUOTA are E Q; b g s f are the algorithms.
local TAKE, DRAIN, COUNT, LOOK, GIVE = 84, 68, 67, 76, 71
local ENFORCE, QUOTA = 69, 81
local BUCKET, GCRA, SLIDING, FIXED = 98, 103, 115, 102

local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(now)
end
if now >= EXACT then now = EXACT - 1 end

-- The quotient and the remainder of x*y/d, for x, y < 2^53 and d < 2^49; a quotient of 2^52 or more is 2^52, 0.
local function muldiv(x, y, d)
  local p = x * y
  if p < EXACT then
    local r = fmod(p, d)
    p = (p - r) / d
    if p >= WAIT_MAX then return WAIT_MAX, 0 end
    return p, r
  end
  if x > y then x, y = y, x end
  local yb = fmod(y, d)
  local whole = x * ((y - yb) / d)
  if whole >= WAIT_MAX then return WAIT_MAX, 0 end
  local chunk = 1
  while chunk * 8 <= x do chunk = chunk * 8 end
  local q, r = 0, 0
  while chunk >= 1 do
    local digit = floor(x / chunk)
    x = x - digit * chunk
    chunk = chunk / 8
    local v = r * 8 + digit * yb
    r = fmod(v, d)
    q = q * 8 + (v - r) / d
  end
  q = q + whole
  if q >= WAIT_MAX then return WAIT_MAX, 0 end
  return q, r
end

-- Whether hits fit into what is left, and how many to take: below 0 to give back, nil to leave the counter alone.
local function weigh(act, hits, left)
  if act == GIVE then return 1, -hits end
  local fits = hits <= left and 1 or 0
  if act == COUNT then return fits, hits end
  if act == LOOK then return fits, nil end
  if fits == 1 then return 1, hits end
  if act == DRAIN and left > 0 then return 0, left end
  return 0, nil
end

-- For how long to keep a state of that time: longer than until it is whole, where the clock is behind it.
local function lasts(reset, at)
  if reset > 0 and at > now then
    reset = reset + (at - now)
    if reset > WAIT_MAX then return WAIT_MAX end
  end
  return reset
end

-- Each algorithm: the charge's verdict as fits, remaining, reset, retry, next. Of a state s, s[1] to s[4] are its
-- numbers, s[1] is nil for a fresh one; s.ttl is set when it has to be written, 0 to delete it.

-- [1] tokens, [2] part, [3] of, [4] at
local function token_bucket(s, act, l, w, burst, hits)
  local n, f, at = s[1], 0, now
  if n then
    f, at = s[2], s[4]
    if s[3] ~= w then f = muldiv(f, w, s[3]) end
    if now > at then
      local q, r = muldiv(now - at, l, w)
      n, f, at = n + q, f + r, now
      if f >= w then n, f = n + 1, f - w end
    end
    if n >= burst then n, f = burst, 0 end
  else
    n = burst
  end
  local fits, take = weigh(act, hits, n)
  if take then
    n = n - take
    if n >= burst then n, f = burst, 0 end
    if n < -COUNT_MAX then n = -COUNT_MAX end
  end
  -- Until so many more tokens are there: the smallest dt with dt*l >= missing*w - f.
  local fl, fr
  local function until_there(missing)
    local q, r = muldiv(missing, w, l)
    if q == WAIT_MAX then return WAIT_MAX end
    if not fl then
      fr = fmod(f, l)
      fl = (f - fr) / l
    end
    if r > fr then return q - fl + 1 end
    return q - fl
  end
  local reset, retry, next = 0, 0, 0
  local remaining = n > 0 and n or 0
  if n < burst then
    reset = until_there(burst - n)
    next = until_there(remaining + 1 - n)
  end
  if fits == 0 then
    if hits > burst then retry = NEVER else retry = until_there(hits - n) end
  end
  if take then s[1], s[2], s[3], s[4], s.ttl = n, f, w, at, lasts(reset, at) end
  return fits, remaining, reset, retry, next
end

-- [1] whole microseconds ahead, [2] part, [3] of, [4] at
local function gcra(s, act, l, w, burst, hits)
  local a, r, at = 0, 0, now
  if s[1] then
    a, r, at = s[1], s[2], s[4]
    if s[3] ~= l then r = muldiv(r, l, s[3]) end
    if now > at then
      a, at = a - (now - at), now
      if a < 0 then a, r = 0, 0 end
    end
  end
  local most, most_r = muldiv(burst, w, l)
  local cost, cost_r = muldiv(hits, w, l)
  local function left()
    if a > most or (a == most and r > most_r) then return -1 end
    if a == 0 and r == 0 then return burst end
    local room, room_r = most - a, most_r - r
    if room_r < 0 then room, room_r = room - 1, room_r + l end
    local q, rest = muldiv(room, l, w)
    rest = rest + room_r
    return q + (rest - fmod(rest, w)) / w
  end
  local had = left()
  local fits, take = weigh(act, hits, had)
  if take then
    local c, c_r = cost, cost_r
    if take < 0 then
      a, r = a - c, r - c_r
      if r < 0 then a, r = a - 1, r + l end
      if a < 0 then a, r = 0, 0 end
    else
      if take ~= hits then c, c_r = muldiv(take, w, l) end
      a, r = a + c, r + c_r
      if r >= l then a, r = a + 1, r - l end
      if a >= WAIT_MAX then a, r = WAIT_MAX, 0 end
    end
    had = left()
  end
  -- Until so much time fits: ahead + cost - most, rounded up; the parts sum up to less than two microseconds.
  local function until_fits(c, c_r)
    local us, parts = a + c - most, r + c_r - most_r
    if parts > l then us = us + 2 elseif parts > 0 then us = us + 1 end
    if us > WAIT_MAX then return WAIT_MAX end
    if us < 0 then return 0 end
    return us
  end
  local remaining = had > 0 and had or 0
  local reset, retry, next = r > 0 and a + 1 or a, 0, 0
  if reset > 0 then next = until_fits(muldiv(remaining + 1, w, l)) end
  if fits == 0 then
    if hits > burst then retry = NEVER else retry = until_fits(cost, cost_r) end
  end
  if take then s[1], s[2], s[3], s[4], s.ttl = a, r, l, at, lasts(reset, at) end
  return fits, remaining, reset, retry, next
end

-- [1] start, [2] this, [3] last
local function sliding_window(s, act, l, w, burst, hits)
  local start, this, last, elapsed = s[1], 0, 0, nil
  if start then
    elapsed = now > start and now - start or 0
    if elapsed < w then
      this, last = s[2], s[3]
    elseif elapsed < 2 * w then
      last, start = s[2], nil
    else
      start = nil
    end
  end
  if not start then
    elapsed = fmod(now, w)
    start = now - elapsed
  end
  local share, rest = muldiv(last, w - elapsed, w)
  if rest > 0 then share = share + 1 end
  local fits, take = weigh(act, hits, l - this - share)
  if take then
    this = this + take
    if this < 0 then this = 0 elseif this > COUNT_MAX then this = COUNT_MAX end
  end
  -- For how long at a window's end the share of the window before is at most room.
  local function covered(room, before)
    if before <= room then return w end
    return (muldiv(room, w, before))
  end
  local function until_fits(h)
    local room = l - h - this
    if room >= 0 then
      local c = covered(room, last)
      if c > 0 then
        c = w - elapsed - c
        return c > 0 and c or 0
      end
    end
    return w - elapsed + (w - covered(l - h, this))
  end
  local remaining = l - this - share
  if remaining < 0 then remaining = 0 end
  local reset, retry, next = 0, 0, 0
  if this > 0 then reset = 2 * w - elapsed elseif last > 0 then reset = w - elapsed end
  if reset > 0 then next = until_fits(remaining + 1) end
  if fits == 0 then
    if hits > l then retry = NEVER else retry = until_fits(hits) end
  end
  if take then s[1], s[2], s[3], s.ttl = start, this, last, lasts(reset, start) end
  return fits, remaining, reset, retry, next
end

-- [1] start, [2] count
local function fixed_window(s, act, l, w, burst, hits)
  local start, count, elapsed = s[1], 0, nil
  if start then
    elapsed = now > start and now - start or 0
    if elapsed < w then count = s[2] else start = nil end
  end
  if not start then
    elapsed = fmod(now, w)
    start = now - elapsed
  end
  local fits, take = weigh(act, hits, l - count)
  if take then
    count = count + take
    if count < 0 then count = 0 elseif count > COUNT_MAX then count = COUNT_MAX end
  end
  local remaining = count < l and l - count or 0
  local reset, retry = 0, 0
  if count > 0 then reset = w - elapsed end
  if fits == 0 then
    if hits > l then retry = NEVER else retry = w - elapsed end
  end
  if take then s[1], s[2], s.ttl = start, count, lasts(reset, start) end
  return fits, remaining, reset, retry, reset
end

local function judge(s, algorithm, act, l, w, burst, hits)
  if l == 0 and not (algorithm == FIXED and (act == COUNT or (act == LOOK and hits == 0))) then
    local to_end = w - fmod(now, w)
    if act == GIVE or hits == 0 then return 1, 0, to_end, 0, to_end end
    return 0, 0, to_end, NEVER, to_end
  end
  if algorithm == BUCKET then return token_bucket(s, act, l, w, burst, hits) end
  if algorithm == GCRA then return gcra(s, act, l, w, burst, hits) end
  if algorithm == SLIDING then return sliding_window(s, act, l, w, burst, hits) end
  return fixed_window(s, act, l, w, burst, hits)
end

-- The numbers of a text that we wrote, or nil.
local function parse(algorithm, text)
  if algorithm == BUCKET or algorithm == GCRA then
    local pattern = algorithm == BUCKET and '^b (%-?%d+) (%d+) (%d+) (%d+)$' or '^g (%d+) (%d+) (%d+) (%d+)$'
    local a, b, c, d = match(text, pattern)
    if not a then return nil end
    a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
    if b >= c or c > COUNT_MAX or d >= EXACT or a > WAIT_MAX or a < -COUNT_MAX then return nil end
    return {a, b, c, d}
  end
  if algorithm == SLIDING then
    local a, b, c = match(text, '^s (%d+) (%d+) (%d+)$')
    if not a then return nil end
    a, b, c = tonumber(a), tonumber(b), tonumber(c)
    if a >= EXACT or b > COUNT_MAX or c > COUNT_MAX then return nil end
    return {a, b, c}
  end
  local a, b = match(text, '^f (%d+) (%d+)$')
  if not a then return nil end
  a, b = tonumber(a), tonumber(b)
  if a >= EXACT or b > COUNT_MAX then return nil end
  return {a, b}
end

local function corrupt(key, what)
  return redis.error_reply('CORRUPT ' .. key .. ' holds ' .. what .. '; delete the key to start it anew')
end

local args = #ARGV

-- 1. Read all.
local states, texts = {}, {}
for i = 2, args, 6 do
  local k = ARGV[i]
  if not states[k] then
    local key = KEYS[tonumber(k)]
    local text = redis.pcall('GET', key)
    local s = {}
    if text then
      if type(text) == 'table' then
        if match(text.err, '^WRONGTYPE') then return corrupt(key, 'no text') end
        return text
      end
      s = parse(byte(ARGV[i + 1]), text)
      if not s then return corrupt(key, '"' .. string.gsub(string.sub(text, 1, 60), '[^ -~]', '?') .. '"') end
      texts[k] = text
    end
    states[k] = s
  end
end

-- 2. Decide all: as if the request passed...
local reply = {0}
local o = 1
local refused, quota, quota_fits = false, false, false
for i = 2, args, 6 do
  local algorithm, act, role = byte(ARGV[i + 1], 1, 3)
  local fits, remaining, reset, retry, next = judge(states[ARGV[i]], algorithm, act, tonumber(ARGV[i + 2]),
    tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]))
  reply[o + 1], reply[o + 2], reply[o + 3], reply[o + 4], reply[o + 5] = fits, remaining, reset, retry, next
  o = o + 5
  if role == ENFORCE then
    if fits == 0 then refused = true end
  elseif role == QUOTA then
    quota = true
    if fits == 1 then quota_fits = true end
  end
end
if quota and not quota_fits then refused = true end

-- ...and when it does not, as if it had not come, but for the hits that are spent in spite of that.
if refused then
  reply[1] = 1
  if args > 7 then
    for i = 2, args, 6 do
      local k = ARGV[i]
      states[k] = texts[k] and parse(byte(ARGV[i + 1]), texts[k]) or {}
    end
    o = 1
    for i = 2, args, 6 do
      local algorithm, act = byte(ARGV[i + 1], 1, 2)
      local fitted, waits = reply[o + 1] == 1, reply[o + 4]
      if act ~= COUNT and (act ~= DRAIN or fitted) then act = LOOK end
      local _, remaining, reset, retry, next = judge(states[ARGV[i]], algorithm, act, tonumber(ARGV[i + 2]),
        tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]))
      if fitted then
        retry = 0
      elseif waits == NEVER or (retry ~= NEVER and waits > retry) then
        retry = waits
      end
      reply[o + 2], reply[o + 3], reply[o + 4], reply[o + 5] = remaining, reset, retry, next
      o = o + 5
    end
  end
end

-- 3. Write all. Deletions last: they succeed where memory is short, and must not be the half that does.
local deletions = false
for i = 2, args, 6 do
  local k = ARGV[i]
  local s = states[k]
  if s.ttl == 0 then
    deletions = true
  elseif s.ttl then
    local algorithm = byte(ARGV[i + 1])
    local text
    if algorithm == BUCKET then
      text = format('b %.0f %.0f %.0f %.0f', s[1], s[2], s[3], s[4])
    elseif algorithm == GCRA then
      text = format('g %.0f %.0f %.0f %.0f', s[1], s[2], s[3], s[4])
    elseif algorithm == SLIDING then
      text = format('s %.0f %.0f %.0f', s[1], s[2], s[3])
    else
      text = format('f %.0f %.0f', s[1], s[2])
    end
    redis.call('SET', KEYS[tonumber(k)], text, 'PX', format('%.0f', ceil(s.ttl / 1000)))
    s.ttl = nil
  end
end
if deletions then
  for i = 2, args, 6 do
    local k = ARGV[i]
    if states[k].ttl == 0 and texts[k] then
      redis.call('DEL', KEYS[tonumber(k)])
      texts[k] = nil
    end
  end
end
return reply
