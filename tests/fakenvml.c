/* Test-only libnvidia-ml.so.1: ABI subset of NVML for agents without a GPU.  cc -shared -fPIC -O2 -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fakenvml.c -lm -lpthread
   Control file named by $FAKE_NVML_CONF, else nvml.conf in the first folder of $LD_LIBRARY_PATH; re-read on mtime/size change, lines KEY=VALUE:
     count=2  mig.0=2  epoch=1 (bump = driver restart: handles stale until nvmlInit again, energy counter restarts)
     init=9  (return code of nvmlInit)   rc.<fn>=<code>   rc.<gpu>=<code> (15 = GPU_IS_LOST)   rc.<gpu>.<fn>=<code>   delay_us.<fn>=20000
     <gpu>.util=73 <gpu>.mem=41 <gpu>.power=345000 (mW) <gpu>.used=… <gpu>.temp= <gpu>.throttle=4 <gpu>.sm= <gpu>.dram=   xid.<seq>=<gpu>:<code>
     order=2,0 (which cards there are, in the order of their index; then count is its length)   <gpu>.burst=0.2 (busy in the first 0.2 s of each second, idle after)
     rc.field.<id>=<code> (a field of GetFieldValues)   wide.<id>=1 (the field is 32 bits)   <gpu>.ecc0= <gpu>.ecc1= (corrected, uncorrected errors)
     mig.<gpu>.<slice>=0 (this slice is not there)   <gpu>.slice_used= <gpu>.procs=
   fakeSetTime(t): from now on it is t (s since the epoch), delays and all; fakeTime(); fakeCalls(): calls so far; fakeSamples(): GPM samples and event sets in use; fakeReset(): as if just loaded. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>
#include <sys/stat.h>
typedef int R; typedef unsigned u; typedef unsigned long long ull;
enum {OK,UNINIT,INVAL,NOTSUP,NOPERM,NOTFOUND=6,SIZE=7,DRV=9,TIMEOUT=10,NOFN=13,LOST=15,UNKNOWN=999};
#define MAXK 512
static struct {char k[64]; char v[64];} kv[MAXK]; static int nkv; static struct timespec mt; static off_t sz; static int inited; static long epoch0; static double t_init;
static pthread_mutex_t mu=PTHREAD_MUTEX_INITIALIZER;
struct dev {int i, mig;}; static struct dev devs[16], migs[16][8];
static double vt; static long calls; static int samples;
void fakeSetTime(double t){vt=t;} long fakeCalls(void){return calls;} int fakeSamples(void){return samples;} double fakeTime(void){return vt;}
static double now(void){if(vt>0) return vt; struct timespec t; clock_gettime(CLOCK_REALTIME,&t); return t.tv_sec+t.tv_nsec/1e9;}
static void load(void){ char beside[4200]; const char*p=getenv("FAKE_NVML_CONF"),*l_=getenv("LD_LIBRARY_PATH"); struct stat s; if(!p&&l_){snprintf(beside,sizeof beside,"%.*s/nvml.conf",(int)strcspn(l_,":"),l_); p=beside;} if(!p||stat(p,&s)) return;
  pthread_mutex_lock(&mu);
  if(s.st_mtim.tv_sec!=mt.tv_sec||s.st_mtim.tv_nsec!=mt.tv_nsec||s.st_size!=sz){ mt=s.st_mtim; sz=s.st_size; nkv=0; FILE*f=fopen(p,"r"); char l[200];
    while(f&&nkv<MAXK&&fgets(l,sizeof l,f)){char*e=strchr(l,'='); if(!e||*l=='#')continue; *e=0; snprintf(kv[nkv].k,64,"%s",l); snprintf(kv[nkv].v,64,"%s",e+1); kv[nkv].v[strcspn(kv[nkv].v,"\r\n")]=0; nkv++;} if(f)fclose(f);} 
  pthread_mutex_unlock(&mu);}
static const char*gets_(const char*k){for(int i=0;i<nkv;i++) if(!strcmp(kv[i].k,k)) return kv[i].v; return 0;}
static double getd(double d,const char*fmt,int g,const char*s){char k[80]; snprintf(k,80,fmt,g,s); const char*v=gets_(k); return v?atof(v):d;}
static double G(int g,const char*s,double d){return getd(d,"%d.%s",g,s);}
static int order(int*o){const char*v=gets_("order"); int n=0; if(!v) return -1; while(*v&&n<16){o[n++]=atoi(v); v+=strcspn(v,","); if(*v) v++;} return n;}
static int count(void){int o[16],n=order(o); if(n>=0) return n; const char*v=gets_("count"); return v?atoi(v):2;}
static int card_at(int i){int o[16],n=order(o); return n<0?i:o[i];}
static int index_of(int g){int o[16],n=order(o); for(int i=0;i<n;i++) if(o[i]==g) return i; return n<0?g:-1;}
static int slice_there(int g,int i){if(i>=getd(0,"mig.%d%s",g,"")) return 0; char k[32]; snprintf(k,32,"mig.%d.%d",g,i); const char*v=gets_(k); return !v||atoi(v);}
/* A driver's call is not broken off by a signal. */
static void hang(double s){ struct timespec t={(time_t)s,(long)((s-(long)s)*1e9)}; while(nanosleep(&t,&t)); }
static R pre(const char*fn,struct dev*d){ calls++; load(); char k[80]; const char*v; snprintf(k,80,"delay_us.%s",fn); if((v=gets_(k))){ if(vt>0) vt+=atof(v)/1e6; else hang(atof(v)/1e6); }
  if(!inited) return UNINIT; if((v=gets_("epoch"))&&atol(v)!=epoch0) return UNKNOWN;
  snprintf(k,80,"rc.%s",fn); if((v=gets_(k))) return atoi(v);
  if(d&&d->mig>=0&&!slice_there(d->i,d->mig)) return NOTFOUND;
  if(d){ snprintf(k,80,"rc.%d",d->i); if((v=gets_(k))) return atoi(v); snprintf(k,80,"rc.%d.%s",d->i,fn); if((v=gets_(k))) return atoi(v);} return OK;}
#define PRE(d) do{R r_=pre(__func__,(struct dev*)(d)); if(r_) return r_;}while(0)
#define D ((struct dev*)d)
static double util(int g){double b=G(g,"burst",0); if(b>0) return fmod(now(),1.0)<b?100:0; return G(g,"util",round(50+40*sin(now()/30+g)));}
static double power(int g){return G(g,"power",100000+5000*util(g));}
R nvmlInitWithFlags(u f){load(); const char*v=gets_("init"); if(v&&atoi(v)) return atoi(v); v=gets_("epoch"); long e=v?atol(v):0; if(e!=epoch0||!t_init) t_init=now(); epoch0=e; inited++; return OK;}
R nvmlInit_v2(void){return nvmlInitWithFlags(0);}
R nvmlShutdown(void){if(!inited) return UNINIT; inited--; return OK;}
const char*nvmlErrorString(R r){switch(r){case 0:return "Success";case 3:return "Not Supported";case 15:return "GPU is lost";case 9:return "Driver Not Loaded";default:return "Unknown Error";}}
R nvmlSystemGetDriverVersion(char*b,u n){PRE(0); snprintf(b,n,"580.00-fake"); return OK;}
R nvmlSystemGetNVMLVersion(char*b,u n){snprintf(b,n,"13.580.00-fake"); return OK;}
R nvmlSystemGetCudaDriverVersion_v2(int*v){*v=13000; return OK;}
R nvmlDeviceGetCount_v2(u*n){PRE(0); *n=count(); return OK;}
R nvmlDeviceGetHandleByIndex_v2(u i,void**d){PRE(0); if((int)i>=count()) return INVAL; i=card_at(i); devs[i].i=i; devs[i].mig=-1; R r=pre("handle",&devs[i]); if(r) return r; *d=&devs[i]; return OK;}
R nvmlDeviceGetIndex(void*d,u*i){PRE(d); *i=index_of(D->i); return OK;}
R nvmlDeviceGetName(void*d,char*b,u n){PRE(d); snprintf(b,n,D->mig<0?"NVIDIA Fake H200":"NVIDIA Fake H200 MIG 1g.18gb"); return OK;}
R nvmlDeviceGetUUID(void*d,char*b,u n){PRE(d); snprintf(b,n,D->mig<0?"GPU-00000000-0000-0000-0000-%012d":"MIG-00000000-0000-0000-%04d-%012d",D->mig<0?D->i:D->mig,D->i); return OK;}
R nvmlDeviceGetPciInfo_v3(void*d,void*p){PRE(d); memset(p,0,68); snprintf((char*)p,16,"0000:%02X:00.0",D->i+1); snprintf((char*)p+36,32,"00000000:%02X:00.0",D->i+1); return OK;}
R nvmlDeviceGetUtilizationRates(void*d,u*x){PRE(d); if(D->mig>=0||getd(0,"mig.%d%s",D->i,"")>0) return NOTSUP; x[0]=util(D->i); x[1]=G(D->i,"mem",x[0]*.6); return OK;}
#define SLICE 20000000000ULL
R nvmlDeviceGetMemoryInfo(void*d,ull*m){PRE(d); if(D->mig>=0){m[0]=SLICE; m[2]=(ull)G(D->i,"slice_used",15e9); m[1]=m[0]-m[2]; return OK;} m[0]=150754820096ULL; m[2]=(ull)G(D->i,"used",120e9); m[1]=m[0]-m[2]; return OK;}
R nvmlDeviceGetMemoryInfo_v2(void*d,void*p){PRE(d); ull*m=(ull*)p; if(D->mig>=0){m[1]=SLICE; m[2]=20e6; m[4]=(ull)G(D->i,"slice_used",15e9); m[3]=m[1]-m[2]-m[4]; return OK;} m[1]=150754820096ULL; m[2]=600e6; m[4]=(ull)G(D->i,"used",120e9); m[3]=m[1]-m[2]-m[4]; return OK;} /* version,total,reserved,free,used */
R nvmlDeviceGetPowerUsage(void*d,u*x){PRE(d); *x=power(D->i); return OK;}
R nvmlDeviceGetEnforcedPowerLimit(void*d,u*x){PRE(d); *x=700000; return OK;}
R nvmlDeviceGetPowerManagementLimit(void*d,u*x){PRE(d); *x=700000; return OK;}
static ull energy(int g){ /* closed form integral of default waveform; with fixed power: P*t */ const char*v; char k[20]; snprintf(k,20,"%d.power",g); double t=now(); if((v=gets_(k))) return atof(v)*(t-t_init); return 350000*(t-t_init)-200000*30*(cos(t/30+g)-cos(t_init/30+g)); }
R nvmlDeviceGetTotalEnergyConsumption(void*d,ull*x){PRE(d); *x=energy(D->i); return OK;}
R nvmlDeviceGetTemperature(void*d,u s,u*x){PRE(d); *x=G(D->i,"temp",61); return OK;}
R nvmlDeviceGetClockInfo(void*d,u t,u*x){PRE(d); *x=t==2?3201:1980; return OK;}
R nvmlDeviceGetMaxClockInfo(void*d,u t,u*x){PRE(d); *x=t==2?3201:1980; return OK;}
R nvmlDeviceGetPerformanceState(void*d,u*x){PRE(d); *x=0; return OK;}
R nvmlDeviceGetPcieThroughput(void*d,u c,u*x){PRE(d); *x=c?250000:900000; return OK;}
R nvmlDeviceGetCurrPcieLinkGeneration(void*d,u*x){PRE(d); *x=5; return OK;}
R nvmlDeviceGetCurrPcieLinkWidth(void*d,u*x){PRE(d); *x=16; return OK;}
R nvmlDeviceGetCurrentClocksEventReasons(void*d,ull*x){PRE(d); *x=G(D->i,"throttle",0); return OK;}
R nvmlDeviceGetCurrentClocksThrottleReasons(void*d,ull*x){PRE(d); *x=G(D->i,"throttle",0); return OK;}
R nvmlDeviceGetTotalEccErrors(void*d,u t,u c,ull*x){PRE(d); *x=G(D->i,t?"ecc1":"ecc0",0); return OK;}
R nvmlDeviceGetNvLinkState(void*d,u l,u*x){PRE(d); if(l>=18) return INVAL; *x=1; return OK;}
R nvmlDeviceGetMigMode(void*d,u*c,u*p){PRE(d); *c=*p=getd(0,"mig.%d%s",D->i,"")>0; return OK;}
R nvmlDeviceGetMaxMigDeviceCount(void*d,u*n){PRE(d); *n=7; return OK;}
R nvmlDeviceGetMigDeviceHandleByIndex(void*d,u i,void**o){PRE(d); if(!slice_there(D->i,i)) return NOTFOUND; migs[D->i][i]=(struct dev){D->i,i}; *o=&migs[D->i][i]; return OK;}
R nvmlDeviceGetGpuInstanceId(void*d,u*i){PRE(d); if(D->mig<0) return INVAL; *i=D->mig+1; return OK;}
R nvmlDeviceGetComputeInstanceId(void*d,u*i){PRE(d); if(D->mig<0) return INVAL; *i=0; return OK;}
struct proc{u pid; ull used; u gi,ci;};
R nvmlDeviceGetComputeRunningProcesses_v3(void*d,u*n,struct proc*p){PRE(d); u has=G(D->i,"procs",1); if(*n<has||!p){*n=has; return has?SIZE:OK;} *n=has; for(u i=0;i<has;i++) p[i]=(struct proc){4242+i,(ull)G(D->i,"used",120e9),~0u,~0u}; return OK;}
struct fv{u id,scope; long long ts,lat; u type; R ret; union{double d;u ui;unsigned long ul;ull ull_;long long sll;}v;};
R nvmlDeviceGetFieldValues(void*d,int n,struct fv*f){PRE(d); for(int i=0;i<n;i++){f[i].ts=now()*1e6; f[i].lat=3; f[i].ret=OK; f[i].type=1; int g=D->i; char k[32]; snprintf(k,32,"rc.field.%u",f[i].id); const char*v=gets_(k); if(v&&atoi(v)){f[i].ret=atoi(v); continue;} f[i].v.ull_=0; switch(f[i].id){
  case 83: f[i].type=3; f[i].v.ull_=energy(g); break; case 185: case 186: f[i].v.ui=power(g); break; case 82: f[i].v.ui=G(g,"temp",61)+9; break; case 190: f[i].v.ui=700000; break;
  case 94: f[i].v.ui=0; break; case 138: case 139: f[i].type=3; f[i].v.ull_=(now()-t_init)*5e6; break; case 142: case 143: case 144: case 145: f[i].v.ui=0; break;
  case 197: case 198: f[i].type=3; f[i].v.ull_=(now()-t_init)*1e9; break; default: f[i].ret=NOTSUP;} snprintf(k,32,"wide.%u",f[i].id); if(gets_(k)) f[i].type=1;} return OK;}
struct smp{ull ts; union{double d;u ui;ull x;}v;};
R nvmlDeviceGetSamples(void*d,u type,ull last,u*vt,u*n,struct smp*s){PRE(d); *vt=1; ull t=now()*1e6, step=20000; u k=120; if(last&&t>last){k=(t-last)/step; if(k>120)k=120;} if(!k) return NOTFOUND; if(!s){*n=k; return OK;} if(*n<k)k=*n; *n=k;
  for(u i=0;i<k;i++){s[i].ts=t-(k-1-i)*step; s[i].v.ui=type==0?power(D->i):util(D->i);} return OK;}
struct gs{double t; int g;}; struct gm{u id; R ret; double v; char*a,*b,*c;}; struct gmg{u ver,n; struct gs*s1,*s2; struct gm m[];}; struct gsup{u ver,sup;};
R nvmlGpmQueryDeviceSupport(void*d,struct gsup*s){PRE(d); s->sup=G(D->i,"gpm",1); return OK;}
R nvmlGpmSampleAlloc(struct gs**s){samples++; *s=calloc(1,sizeof **s); return OK;}
R nvmlGpmSampleFree(struct gs*s){samples--; free(s); return OK;}
R nvmlGpmSampleGet(void*d,struct gs*s){PRE(d); if(getd(0,"mig.%d%s",D->i,"")>0) return NOTSUP; s->t=now(); s->g=D->i; return OK;}
R nvmlGpmMigSampleGet(void*d,u gi,struct gs*s){PRE(d); s->t=now(); s->g=D->i; return OK;}
R nvmlGpmMetricsGet(struct gmg*m){PRE(0); for(u i=0;i<m->n;i++){int g=m->s1->g; m->m[i].ret=OK; double x; switch(m->m[i].id){case 1: x=util(g);break; case 2: x=G(g,"sm",util(g)*.8);break; case 3: x=G(g,"occ",31);break; case 5: x=G(g,"tensor",22);break; case 10: x=G(g,"dram",util(g)*.7);break; case 20: x=240;break; case 21: x=870;break; case 60: case 61: x=5000;break; default: m->m[i].ret=NOTSUP; x=0;} m->m[i].v=x; m->m[i].a=m->m[i].b=m->m[i].c="fake";} return OK;}
static int xids_seen; /* an event is told once, whoever waits */
struct es{int seen; u cards;}; /* cards: bits of those that were registered */ struct ev{void*d; ull type,data; u gi,ci;};
R nvmlEventSetCreate(struct es**s){PRE(0); samples++; *s=calloc(1,sizeof **s); (*s)->seen=xids_seen; return OK;}
R nvmlEventSetFree(struct es*s){samples--; free(s); return OK;}
R nvmlDeviceRegisterEvents(void*d,ull t,struct es*s){PRE(d); s->cards|=1u<<D->i; return OK;}
R nvmlDeviceGetSupportedEventTypes(void*d,ull*t){PRE(d); *t=8|1|2; return OK;}
R nvmlEventSetWait_v2(struct es*s,struct ev*e,u ms){PRE(0); double end=now()+ms/1e3; do{ load(); char k[32]; snprintf(k,32,"xid.%d",s->seen+1); const char*v=gets_(k); if(v){xids_seen=++s->seen; int g=0,c=0; sscanf(v,"%d:%d",&g,&c); if(!(s->cards>>g&1)) continue; devs[g].i=g; devs[g].mig=-1; *e=(struct ev){&devs[g],8,c,~0u,~0u}; return OK;} if(!ms) break; usleep(2000);}while(now()<end); return TIMEOUT;}
R nvmlSystemGetCudaDriverVersion(int*v){*v=13000; return OK;}
R nvmlDeviceGetGraphicsRunningProcesses_v3(void*d,u*n,struct proc*p){PRE(d); *n=0; return OK;}
R nvmlDeviceGetFanSpeed(void*d,u*x){return NOTSUP;}
R nvmlDeviceGetEncoderUtilization(void*d,u*x,u*p){PRE(d); *x=0; *p=167000; return OK;}
R nvmlDeviceGetDecoderUtilization(void*d,u*x,u*p){PRE(d); *x=0; *p=167000; return OK;}
R nvmlDeviceGetDisplayActive(void*d,u*x){PRE(d); *x=0; return OK;}
R nvmlDeviceGetDisplayMode(void*d,u*x){PRE(d); *x=0; return OK;}
R nvmlDeviceGetPersistenceMode(void*d,u*x){PRE(d); *x=1; return OK;}
R nvmlDeviceGetComputeMode(void*d,u*x){PRE(d); *x=0; return OK;}
void fakeReset(void){vt=0; calls=0; samples=0; inited=0; xids_seen=0; nkv=0; sz=-1; epoch0=0; t_init=0;}
