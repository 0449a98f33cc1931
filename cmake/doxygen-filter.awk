# Turns the headers' plain comments into Doxygen's, for cmake/Doxygen.cmake: the block at a file's head,
# comments before declarations, comments behind members. The headers stay free of its syntax.
FNR == 1 { head = 1; c = FILENAME ~ /moert\.h$|\/moert\/c\// }
c {
  if ($0 ~ /^ *\/\* ---/) { sub(/\/\* -+/, "/* ------") }  # section headings are no documentation
  else if (head && $0 ~ /^\/\*/) { sub(/^\/\*/, "/** @file\n *"); head = 0 }
  else if ($0 ~ /^ *\/\* /) { sub(/\/\* /, "/** ") }
  else { sub(/; +\/\* /, "; /**< "); sub(/, +\/\* /, ", /**< "); }
  print
  next
}
head && /^\/\// { if (FNR == 1) print "/// @file"; sub(/^\/\//, "///"); print; next }
{
  head = 0
  if ($0 !~ /^ *\/\// && $0 ~ /[;,}] +\/\/ /) sub(/ \/\/ /, " ///< ")
  else if ($0 ~ /^ *\/\/ -----/) { }
  else if ($0 ~ /^ *\/\/ /) sub(/\/\/ /, "/// ")
  print
}
