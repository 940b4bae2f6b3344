"""The texts on workloads and SLOs for help and errors, in one place. Loads nothing."""

DEFAULT_LENGTHS = "lognormal(512,128)"
SLO_HELP = "ttft=2,tpot=0.1 (seconds; also jct), or per class: chat:ttft=1,tpot=0.05; may be given several times"
HELP = """\
  poisson:rate=4,duration=120                 Poisson arrivals, requests a second and seconds
  gamma:rate=4,cv=2,requests=1000             gaps with this coefficient of variation
  onoff:on=8,off=1,on_s=10,off_s=20,duration=300
  trace:FILE,from=60,duration=600,stretch=2   a part of a trace, twice as slow (a bare FILE is a trace too)
  trace:FILE,rate=20                          drawn (or repeated) to a mean rate, with the pattern it has
  trace:FILE,only=long,rate=20                one of its classes, at that rate
  trace:FILE,sample=2,over=30                 2 x 30 requests of the trace, its times scaled to 30 s
  trace:FILE,rewrite=long(0.05,8000,9000)     the longest 5 % get so many input tokens, and all a class
 and with any of them
  lengths=FILE | fixed(512,128) | uniform(1..1024,1..256) | lognormal(512,128,sigma=1) | zipf(1.1,64,4096,ratio=4)
          | mixed(2*SOURCE,1*SOURCE)          of input and output tokens (default: lognormal(512,128))
          | burstgpt | sharegpt | longbench | leval | lveval | loogle | loongserve-mixed   (synthetic)
  documents=FILE                              questions about shared documents (columns task and document)
  prefix=shared(count=10,tokens=256,theta=1)  each request begins with one of 10 texts, by Zipf's law
  class=chat                                  names its class, for SLOs (`batch` is not interactive)
 several at once: SPEC + SPEC
"""
