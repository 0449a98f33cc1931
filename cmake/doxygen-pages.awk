# Pages of docs/ for Doxygen: a picture for two themes becomes the light one.
{
  while (match($0, /<picture>.*<\/picture>/)) {
    tag = substr($0, RSTART, RLENGTH)
    alt = src = tag
    sub(/.*alt="/, "", alt); sub(/".*/, "", alt)
    sub(/.* src="/, "", src); sub(/".*/, "", src); sub(/.*\//, "", src)
    $0 = substr($0, 1, RSTART - 1) "![" alt "](" src ")" substr($0, RSTART + RLENGTH)
  }
  print
}
